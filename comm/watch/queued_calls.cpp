#include <sherd/comm/watch/queued_calls.h>

namespace sherd::comm {

bool QueuedCalls::none(int rank) {
  std::lock_guard lock(mutex_);
  renew();
  return queued_[rank] == 0;
}

uint64_t QueuedCalls::add(int rank) {
  std::lock_guard lock(mutex_);
  renew();
  ++queued_[rank];
  return epoch_;
}

void QueuedCalls::remove(int rank, uint64_t epoch) {
  {
    std::lock_guard lock(mutex_);
    renew();
    if (epoch != epoch_) return;
    --queued_[rank];
  }
  ran_(rank);
}

void QueuedCalls::renew() {
  if (std::exchange(epoch_, domain_.epoch()) != epoch_) queued_.clear();
}

}  // namespace sherd::comm
