// One order of a rank's NCCL operations over all its communicators. Kernels of several communicators that a device begins in
// different orders on different ranks wait for each other for ever where they do not all fit on it at once. Private to comm/nccl.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace sherd::nccl {

/// Operations are issued in the order in which the host has queued them, whatever streams and threads issue them. One at a time.
/// Thread-safe.
class IssueOrder : public std::enable_shared_from_this<IssueOrder> {
 public:
  /// A place in the order, until it is destroyed: with the operation, issued or dropped.
  class Turn {
   public:
    ~Turn() { order_->pass(number_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    /// Waits until all earlier turns are over; calls `poll`, which may throw, now and then.
    void await(const std::function<void()>& poll) const { order_->await(number_, poll); }

   private:
    friend class IssueOrder;
    Turn(std::shared_ptr<IssueOrder> order, int64_t number) : order_(std::move(order)), number_(number) {}
    const std::shared_ptr<IssueOrder> order_;
    const int64_t number_;
  };

  /// Held from take() until the operation is queued: a stream has its operations in the order of their turns.
  std::unique_lock<std::mutex> queueing() { return std::unique_lock(queueing_); }
  /// The next place.
  std::shared_ptr<const Turn> take();

 private:
  void await(int64_t number, const std::function<void()>& poll);
  void pass(int64_t number);

  std::mutex queueing_, mutex_;
  std::condition_variable passed_;
  int64_t taken_ = 0;
  std::set<int64_t> open_;
};

}  // namespace sherd::nccl
