#include <sherd/comm/mpi/detail/batch.h>

namespace sherd::mpi {

void Batch::count(int process, bool sends, int change) {
  const std::lock_guard lock(mutex_);
  Open& open = by_process_[process];
  (sends ? open.sends : open.receives) += change;
}

void Batch::end_one(const std::shared_ptr<Batch>& batch) {
  // All ends run on the MPI thread, so the count cannot change in between. The buffers are released before
  // done() is true: a waiter may free them at once.
  if (batch->open_.load() == 1) batch->keep_.reset();
  // A copy: the waiter may drop the batch when the count reaches zero.
  const std::function<void()> on_done = batch->on_done_;
  if (batch->open_.fetch_sub(1, std::memory_order_acq_rel) == 1 && on_done) on_done();
}

std::vector<int> Batch::late() const {
  const std::lock_guard lock(mutex_);
  if (!everybody_.empty()) return done() ? std::vector<int>() : everybody_;
  std::vector<int> receives, sends;
  for (const auto& [process, open] : by_process_) {
    if (open.receives > 0) receives.push_back(process);
    if (open.sends > 0) sends.push_back(process);
  }
  // Missing data names the cause; an open send only shows that its receiver is slow.
  return receives.empty() ? sends : receives;
}

}  // namespace sherd::mpi
