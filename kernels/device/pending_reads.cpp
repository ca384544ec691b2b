#include <sherd/kernels/device/pending_reads.h>

#include <iterator>
#include <utility>

namespace sherd {

void PendingReads::change(const void* at, int64_t bytes, int change) {
  if (bytes <= 0) return;
  const auto begin = reinterpret_cast<uintptr_t>(at), end = begin + static_cast<uintptr_t>(bytes);
  std::lock_guard lock(mutex_);
  for (const uintptr_t edge : {begin, end}) {
    const auto after = readers_.upper_bound(edge);
    readers_.try_emplace(edge, after == readers_.begin() ? 0 : std::prev(after)->second);
  }
  for (auto it = readers_.find(begin); it->first != end; ++it) it->second += change;
  // Edges between equal counts.
  int before = 0;
  std::erase_if(readers_,
                [&](const auto& edge) { return std::exchange(before, edge.second) == edge.second; });
  read_.notify_all();
}

void PendingReads::add(const void* begin, int64_t bytes) { change(begin, bytes, 1); }
void PendingReads::done(const void* begin, int64_t bytes) { change(begin, bytes, -1); }

bool PendingReads::any() const {
  std::lock_guard lock(mutex_);
  return !readers_.empty();
}

bool PendingReads::within(uintptr_t begin, uintptr_t end) const {
  auto it = readers_.upper_bound(begin);
  if (it != readers_.begin()) --it;
  for (; it != readers_.end() && it->first < end; ++it)
    if (it->second > 0 && (std::next(it) == readers_.end() || std::next(it)->first > begin)) return true;
  return false;
}

void PendingReads::wait(const void* at, int64_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(at);
  std::unique_lock lock(mutex_);
  read_.wait(lock, [&] { return !within(begin, begin + static_cast<uintptr_t>(bytes)); });
}

void PendingReads::wait_all() const {
  std::unique_lock lock(mutex_);
  read_.wait(lock, [&] { return readers_.empty(); });
}

}  // namespace sherd
