#include <sherd/comm/watch/queued_calls.h>

namespace sherd::comm {

bool QueuedCalls::none(int rank) {
  std::lock_guard lock(mutex_);
  renew();
  return queued_[rank] == 0;
}

// Counts on the host's thread, before the call is queued: none() never misses a call.
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
    // Recovery has discarded this count with the others.
    if (epoch != epoch_) return;
    --queued_[rank];
  }
  // Without the mutex: the callback may take a wait point's mutex, whose holder may call none().
  ran_(rank);
}

void QueuedCalls::renew() {
  if (std::exchange(epoch_, domain_.epoch()) != epoch_) queued_.clear();
}

}  // namespace sherd::comm
