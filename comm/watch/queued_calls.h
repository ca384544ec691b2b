// Calls of ranks that are queued on streams and have not run. Private to comm/.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <sherd/comm/watch/abort_domain.h>
#include <sherd/kernels/device/stream.h>

namespace sherd::comm {

/// Counts the queued calls of each rank, on whatever streams: a rank that has left, and of which nothing is queued,
/// joins no call any more. Thread-safe. Ranks are world ranks.
class QueuedCalls {
 public:
  /// `ran` is called after each call that has run, without a lock. The domain outlives this.
  QueuedCalls(const AbortDomain& domain, std::function<void(int rank)> ran)
      : domain_(domain), ran_(std::move(ran)) {}

  /// Queues a call of the rank on the stream. A call that a failed stream drops stays counted: its rank is about to
  /// report the failure.
  template <class Work>
  static void submit(std::shared_ptr<QueuedCalls> calls, int rank, Stream& stream, Operation op, Work work) {
    const auto token = std::make_shared<Token>(std::move(calls), rank);
    try {
      stream.submit(op, [token, work = std::move(work)](ExecutionContext& context) {
        token->ran = true;
        work(context);
      });
    } catch (...) {
      token->ran = true;  // nothing was queued
      throw;
    }
  }

  /// Returns whether no call of the rank is queued.
  bool none(int rank);

 private:
  struct Token {
    Token(std::shared_ptr<QueuedCalls> its_calls, int its_rank)
        : calls(std::move(its_calls)), rank(its_rank), epoch(calls->add(rank)) {}
    ~Token() {
      if (ran) calls->remove(rank, epoch);
    }
    Token(const Token&) = delete;
    Token& operator=(const Token&) = delete;

    const std::shared_ptr<QueuedCalls> calls;
    const int rank;
    const uint64_t epoch;
    bool ran = false;
  };
  uint64_t add(int rank);
  void remove(int rank, uint64_t epoch);
  /// Discards the calls that were dropped before a recovery. With mutex_ held.
  void renew();

  const AbortDomain& domain_;
  const std::function<void(int rank)> ran_;
  std::mutex mutex_;
  std::map<int, int64_t> queued_;  // under mutex_, as the next
  uint64_t epoch_ = 0;
};

}  // namespace sherd::comm
