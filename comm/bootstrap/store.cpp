#include <sherd/comm/bootstrap/store.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include <sherd/comm/bootstrap/detail/store_table.h>
#include <sherd/kernels/device/error.h>

namespace sherd {
namespace {

using Op = StoreRequest::Op;
using Status = StoreReply::Status;
using Clock = std::chrono::steady_clock;

constexpr const char* kAbortKey = "sherd/abort";

StoreReply refused(std::string reason) { return {Status::refused, 0, {std::move(reason)}}; }
StoreReply found(std::string value) { return {Status::ok, 0, {std::move(value)}}; }

std::string name_in_range(const std::string& prefix, int64_t number) {
  return prefix + "/" + std::to_string(number);
}

Clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  return Clock::now() + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
}

class MemoryStore final : public Store {
 protected:
  StoreReply ask(const StoreRequest& request) override { return table_.apply(request); }

 private:
  StoreTable table_;
};

}  // namespace

StoreReply StoreTable::put(const std::string& key, const std::string& value) {
  const auto it = values_.find(key);
  const size_t before = it == values_.end() ? 0 : key.size() + it->second.size();
  const size_t after = bytes_ - before + key.size() + value.size();
  if (after > Store::kMaxTotal)
    return refused(fmt::format("the store is full: {} bytes, at most {}", bytes_, Store::kMaxTotal));
  bytes_ = after;
  values_[key] = value;
  return {Status::ok, 0, {}};
}

StoreReply StoreTable::apply(const StoreRequest& request) {
  if (request.key.size() > Store::kMaxKey || request.value.size() > Store::kMaxValue)
    return refused(fmt::format("a key of {} and a value of {} bytes; at most {} and {}", request.key.size(),
                               request.value.size(), Store::kMaxKey, Store::kMaxValue));
  std::lock_guard lock(mutex_);
  const auto it = values_.find(request.key);
  switch (request.op) {
    case Op::set:
      return put(request.key, request.value);
    case Op::set_once:
      if (it != values_.end()) return found(it->second);
      if (StoreReply r = put(request.key, request.value); r.status != Status::ok) return r;
      return found(request.value);
    case Op::get:
      return it == values_.end() ? StoreReply{} : found(it->second);
    case Op::add: {
      int64_t sum = 0;
      if (it != values_.end()) {
        if (it->second.size() != sizeof sum)
          return refused(fmt::format("{} holds {} bytes and is no counter", request.key, it->second.size()));
        std::memcpy(&sum, it->second.data(), sizeof sum);
      }
      sum = static_cast<int64_t>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(request.number));
      StoreReply r = put(request.key, std::string(reinterpret_cast<const char*>(&sum), sizeof sum));
      r.number = sum;
      return r;
    }
    case Op::erase:
      if (it != values_.end()) {
        bytes_ -= it->first.size() + it->second.size();
        values_.erase(it);
      }
      return {Status::ok, 0, {}};
    case Op::all: {
      // The last comes last, most often: while somebody is missing this ends early, and nothing is copied.
      std::vector<const std::string*> there;
      size_t bytes = 0;
      for (int64_t i = 0; i < request.number; ++i) {
        const auto one = values_.find(name_in_range(request.key, i));
        if (one == values_.end()) return {};
        there.push_back(&one->second);
        bytes += one->second.size();
      }
      if (bytes > Store::kMaxTotal / 4)
        return refused(fmt::format("{} values of {} bytes at once", request.number, bytes));
      StoreReply r{Status::ok, 0, {}};
      for (const std::string* v : there) r.values.push_back(*v);
      return r;
    }
    case Op::bye:
      return {Status::ok, 0, {}};
  }
  return refused(fmt::format("operation {} does not exist", static_cast<int>(request.op)));
}

StoreReply Store::answer(Op op, const std::string& key, const std::string& value, int64_t number,
                         std::chrono::milliseconds patience) {
  StoreReply r = ask({op, number, key, value, patience});
  if (r.status == Status::refused)
    throw InvalidArgument(
        fmt::format("store, key {}: {}", key.substr(0, 80), r.values.empty() ? "refused" : r.values[0]));
  return r;
}

void Store::set(const std::string& key, const std::string& value) { answer(Op::set, key, value); }

std::string Store::set_once(const std::string& key, const std::string& value) {
  return answer(Op::set_once, key, value).values.at(0);
}

std::optional<std::string> Store::get(const std::string& key, std::chrono::milliseconds patience) {
  StoreReply r = answer(Op::get, key, {}, 0, patience);
  if (r.status == Status::absent) return std::nullopt;
  return std::move(r.values.at(0));
}

int64_t Store::add(const std::string& key, int64_t amount) { return answer(Op::add, key, {}, amount).number; }

void Store::erase(const std::string& key) { answer(Op::erase, key); }

std::optional<std::vector<std::string>> Store::all(const std::string& prefix, int64_t count) {
  StoreReply r = answer(Op::all, prefix, {}, count);
  if (r.status == Status::absent) return std::nullopt;
  return std::move(r.values);
}

std::string Store::wait(const std::string& key, std::chrono::milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  for (Backoff backoff;; backoff.sleep()) {
    if (auto value = get(key)) return std::move(*value);
    if (Clock::now() > deadline)
      throw CommError(fmt::format(
          "store: waited {} ms for key {}, which nobody set; look at the other processes of the job, or "
          "raise the timeout",
          timeout.count(), key));
  }
}

void Store::barrier(const std::string& name, int rank, int size, std::chrono::milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  set(name_in_range(name, rank), "");
  for (Backoff backoff; !all(name, size); backoff.sleep()) {
    if (Clock::now() < deadline) continue;
    const std::vector<int> missing = absent(name, size);
    if (missing.empty()) return;
    throw CommError(
        fmt::format("store barrier {} on rank {}: waited {} ms for rank{} {}, which did not come", name, rank,
                    timeout.count(), missing.size() > 1 ? "s" : "", fmt::join(missing, ", ")),
        missing.front());
  }
}

std::vector<int> Store::absent(const std::string& prefix, int count) {
  std::vector<int> missing;
  for (int r = 0; r < count; ++r)
    if (!get(name_in_range(prefix, r))) missing.push_back(r);
  return missing;
}

std::shared_ptr<Store> make_memory_store() { return std::make_shared<MemoryStore>(); }

void announce(Store& store, const AbortNotice& notice) {
  store.set_once(kAbortKey, std::to_string(notice.rank) + ":" + notice.cause.substr(0, 1 << 16));
}

std::optional<AbortNotice> announced(Store& store, std::chrono::milliseconds patience) {
  const auto text = store.get(kAbortKey, patience);
  if (!text) return std::nullopt;
  const size_t colon = text->find(':');
  if (colon == std::string::npos) return AbortNotice{-1, *text};
  return AbortNotice{static_cast<int>(std::strtol(text->c_str(), nullptr, 10)), text->substr(colon + 1)};
}

void Backoff::sleep() {
  std::this_thread::sleep_for(next_);
  next_ = std::min(next_ * 2, longest_);
}

}  // namespace sherd
