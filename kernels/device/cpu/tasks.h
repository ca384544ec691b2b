// Tasks on the threads of a stream, each task on one thread. Private to CPU kernels.
#pragma once

#include <atomic>

#include "parallel.h"

namespace sherd::cpu {

/// Scope in which libraries called on this thread use this number of threads.
class [[nodiscard]] Threads {
 public:
  explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

/// The same with one thread.
class [[nodiscard]] OneThread : Threads {
 public:
  OneThread() : Threads(1) {}
};

/// Calls f(task) for every task in [0, count), in any order and on any thread; library calls inside are
/// single-threaded, so that a task's result does not depend on the number of threads. Rethrows the first
/// exception. With one thread OpenMP's parallel regions are not entered.
template <class F>
void for_tasks(const ExecutionContext& ctx, int64_t count, F f) {
  std::atomic<int64_t> next{0};
  parallel_for(ctx, std::min<int64_t>(count, ctx.threads), 1, [&next, count, &f](int64_t, int64_t) {
    OneThread one;
    for (int64_t task = next++; task < count; task = next++) f(task);
  });
}

}  // namespace sherd::cpu
