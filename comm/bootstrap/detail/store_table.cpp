#include <sherd/comm/bootstrap/detail/store_table.h>

#include <fmt/format.h>

#include <cstring>
#include <utility>
#include <vector>

namespace sherd {
namespace {

using Op = StoreRequest::Op;
using Status = StoreReply::Status;

StoreReply refused(std::string reason) { return {Status::refused, 0, {std::move(reason)}}; }
StoreReply found(std::string value) { return {Status::ok, 0, {std::move(value)}}; }

}  // namespace

StoreReply StoreTable::put(const std::string& key, const std::string& value) {
  const auto it = values_.find(key);
  const size_t before = it == values_.end() ? 0 : key.size() + it->second.size();
  const size_t after = bytes_ - before + key.size() + value.size();
  if (after > StoreLimits::kMaxTotal)
    return refused(fmt::format("the store is full: {} bytes, at most {}", bytes_, StoreLimits::kMaxTotal));
  bytes_ = after;
  values_[key] = value;
  return {Status::ok, 0, {}};
}

StoreReply StoreTable::apply(const StoreRequest& request) {
  if (request.key.size() > StoreLimits::kMaxKey || request.value.size() > StoreLimits::kMaxValue)
    return refused(fmt::format("a key of {} and a value of {} bytes; at most {} and {}", request.key.size(),
                               request.value.size(), StoreLimits::kMaxKey, StoreLimits::kMaxValue));
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
          return refused(
              fmt::format("{} holds {} bytes and is not a counter", request.key, it->second.size()));
        std::memcpy(&sum, it->second.data(), sizeof sum);
      }
      sum = static_cast<int64_t>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(request.number));
      // Stored in the server's byte order; the reply carries the number.
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
      // Most often the last key is set last: while a key is missing this ends early and copies nothing.
      std::vector<const std::string*> there;
      size_t bytes = 0;
      for (int64_t i = 0; i < request.number; ++i) {
        const auto one = values_.find(store_entry(request.key, i));
        if (one == values_.end()) return {};
        there.push_back(&one->second);
        bytes += one->second.size();
      }
      if (bytes > StoreLimits::kMaxTotal / 4)
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

}  // namespace sherd
