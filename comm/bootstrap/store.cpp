#include <sherd/comm/bootstrap/store.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include <sherd/base/error.h>
#include <sherd/comm/bootstrap/detail/store_table.h>
#include <sherd/comm/core/detail/timeouts.h>

namespace sherd {
namespace {

using Op = StoreRequest::Op;
using Status = StoreReply::Status;
using Clock = std::chrono::steady_clock;

constexpr const char* kAbortKey = "sherd/abort";

class MemoryStore final : public Store {
 protected:
  StoreReply ask(const StoreRequest& request) override { return table_.apply(request); }

 private:
  StoreTable table_;
};

}  // namespace

StoreReply Store::answer(Op op, const std::string& key, const std::string& value, int64_t number,
                         std::chrono::milliseconds patience) {
  StoreReply r = ask({op, number, key, value, patience});
  if (r.status == Status::refused)
    throw InvalidArgument(
        fmt::format("store, key {}: {}", key.substr(0, 80), r.values.empty() ? "refused" : r.values[0]));
  return r;
}

void Store::set(const std::string& key, const std::string& value, std::chrono::milliseconds patience) {
  answer(Op::set, key, value, 0, patience);
}

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

// Polled, not pushed: one connection then serves all threads of a rank without a thread of its own.
std::string Store::wait(const std::string& key, std::chrono::milliseconds timeout) {
  const auto deadline = comm::deadline_after(timeout);
  for (Backoff backoff;; backoff.sleep()) {
    if (auto value = get(key)) return std::move(*value);
    if (Clock::now() > deadline)
      throw CommError(fmt::format(
          "store: waited {} ms for key {}, which no rank set; check the other processes of the job, or "
          "raise the timeout",
          timeout.count(), key));
  }
}

std::vector<std::string> Store::collect(const std::string& prefix, int index, const std::string& value,
                                        int count, Clock::time_point deadline,
                                        const std::function<void()>& poll,
                                        const std::function<void(const std::vector<int>& missing)>& late) {
  set(store_entry(prefix, index), value);
  // One request per poll and rank, for any number of values: the server tests them in one pass.
  for (Backoff backoff;; backoff.sleep()) {
    if (auto values = all(prefix, count)) return std::move(*values);
    poll();
    if (Clock::now() < deadline) continue;
    // The deadline has passed, but the last values may have come since all() was asked.
    if (const std::vector<int> missing = absent(prefix, count); !missing.empty()) late(missing);
  }
}

void Store::barrier(const std::string& name, int rank, int size, std::chrono::milliseconds timeout) {
  collect(
      name, rank, "", size, comm::deadline_after(timeout), [] {},
      [&](const std::vector<int>& missing) {
        throw CommError(
            fmt::format("store barrier {} on rank {}: waited {} ms for rank{} {}, which did not come", name,
                        rank, timeout.count(), missing.size() > 1 ? "s" : "", fmt::join(missing, ", ")),
            missing.front());
      });
}

std::vector<int> Store::absent(const std::string& prefix, int count) {
  std::vector<int> missing;
  for (int r = 0; r < count; ++r)
    if (!get(store_entry(prefix, r))) missing.push_back(r);
  return missing;
}

std::shared_ptr<Store> make_memory_store() { return std::make_shared<MemoryStore>(); }

// The first failure wins: set_once() keeps an earlier notice. Long causes are cut, to stay below the limit
// of a frame.
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
  if (std::chrono::steady_clock::now() < awake_until_) return std::this_thread::yield();
  std::this_thread::sleep_for(next_);
  next_ = std::min(next_ * 2, longest_);
}

}  // namespace sherd
