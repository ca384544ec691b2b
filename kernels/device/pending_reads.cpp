#include <sherd/kernels/device/pending_reads.h>

namespace sherd {

uint64_t PendingReads::add(const void* at, int64_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(at);
  std::lock_guard lock(mutex_);
  ranges_[++numbers_] = {begin, begin + static_cast<uintptr_t>(bytes)};
  return numbers_;
}

void PendingReads::done(uint64_t number) {
  std::lock_guard lock(mutex_);
  ranges_.erase(number);
  read_.notify_all();
}

uint64_t PendingReads::newest() const {
  std::lock_guard lock(mutex_);
  return ranges_.empty() ? 0 : ranges_.rbegin()->first;
}

void PendingReads::wait(uint64_t newest, const void* at, int64_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(at), end = begin + static_cast<uintptr_t>(bytes);
  std::unique_lock lock(mutex_);
  read_.wait(lock, [&] {
    for (auto it = ranges_.begin(); it != ranges_.end() && it->first <= newest; ++it)
      if (it->second.begin < end && begin < it->second.end) return false;
    return true;
  });
}

void PendingReads::wait(uint64_t newest) const {
  std::unique_lock lock(mutex_);
  read_.wait(lock, [&] { return ranges_.empty() || ranges_.begin()->first > newest; });
}

}  // namespace sherd
