// Split of a range over the threads of a stream. Private to CPU kernels.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>

#include <sherd/kernels/device/cpu/vectors.h>
#include <sherd/kernels/device/stream.h>

namespace sherd::cpu {

/// Elements per block of simple elementwise loops: enough work to pay for waking a thread.
constexpr int64_t kGrain = 16384;
/// Rows of as many elements.
inline int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, cols)); }

/// Calls f(begin, end) for disjoint ranges that cover [0, n), at most one per thread; every boundary is a
/// multiple of `grain`. A vectorised f thus treats an element the same with any number of threads, if grains
/// are multiples of 16. Rethrows the first exception of any f. Inside f, omp_get_thread_num() is below
/// ctx.threads and names the caller. With one thread OpenMP is not entered.
template <class F>
void parallel_for(const ExecutionContext& ctx, int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  const int64_t blocks = (n + grain - 1) / grain;
  const int threads = static_cast<int>(std::min<int64_t>(ctx.threads, blocks));
  if (threads == 1) {
    vectorized(f, int64_t{0}, n);
    return;
  }
  std::exception_ptr failure;
  // The whole team, also where some have nothing to do: libgomp ends the threads that a region leaves out and makes them
  // again for a later one.
#pragma omp parallel num_threads(ctx.threads)
  {
    const int64_t t = omp_get_thread_num(), count = std::min(threads, omp_get_num_threads());
    const int64_t begin = blocks * t / count * grain, end = std::min(n, blocks * (t + 1) / count * grain);
    try {
      if (t < count && begin < end) vectorized(f, begin, end);
    } catch (...) {
#pragma omp critical(sherd_parallel_for)
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace sherd::cpu
