#include <sherd/comm/nccl/detail/issue_order.h>

#include <chrono>

namespace sherd::nccl {

std::shared_ptr<const IssueOrder::Turn> IssueOrder::take() {
  std::lock_guard lock(mutex_);
  const int64_t number = ++taken_;
  open_.insert(number);
  return std::shared_ptr<const Turn>(new Turn(shared_from_this(), number));
}

void IssueOrder::await(int64_t number, const std::function<void()>& poll) {
  std::unique_lock lock(mutex_);
  while (!passed_.wait_for(lock, std::chrono::milliseconds(50), [&] { return *open_.begin() == number; })) {
    lock.unlock();
    poll();
    lock.lock();
  }
}

void IssueOrder::pass(int64_t number) {
  {
    std::lock_guard lock(mutex_);
    open_.erase(number);
  }
  passed_.notify_all();
}

}  // namespace sherd::nccl
