// CUDA's device language for a host compiler, enough to run the CUDA kernels without a GPU.
//
// A kernel is an ordinary function here. run() calls it once per thread, one block after another, on the
// calling OS thread. A thread that waits (at a barrier or for the other lanes of a shuffle) is set aside on a
// stack of its own. Between two barriers the threads of a block run in ascending or descending order, in
// turns, so that a missing barrier shows.
//
// Reported errors (std::logic_error): barriers that not all running threads reach, or reach at different
// places of the source; warp operations whose named lanes do not all arrive or that read a lane that is not
// named; blocks and grids that no GPU starts; writing behind dynamic shared memory. Dynamic shared memory is
// NaN at the start of each block; static shared memory keeps the last block's values.
//
// Limits: inline PTX, threads or blocks that wait for each other in a loop (but hopper.h has the barriers and
// asynchronous copies and products of compute capability 9.0), cooperative groups, floating-point atomics
// (which sherd does not allow). It computes as the host does: products and sums are fused only by fmaf, and
// expf, __expf and the like are the host's.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "fake.h"
#include "late.h"

#undef __shared__
#define __shared__ static thread_local
#undef __grid_constant__
#define __grid_constant__
#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif

/// Dynamic shared memory of a kernel as `type name[]`, 128-byte aligned.
#define SHERD_DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(cuda_host::dynamic_shared())

inline constinit thread_local uint3 threadIdx{};
inline constinit thread_local uint3 blockIdx{};
inline constinit thread_local dim3 blockDim{};
inline constinit thread_local dim3 gridDim{};
inline constexpr int warpSize = 32;

namespace cuda_host {

using Place = std::source_location;

/// Limits of a block, as on the H200.
inline constexpr unsigned kMostThreads = 1024;
inline constexpr size_t kMostSharedBytes = 227 * 1024;

void run_blocks(const char* what, dim3 blocks, dim3 threads, size_t shared_bytes, void (*call)(const void*),
                const void* body);

/// Calls `body()` once for each thread of each block, with threadIdx and the like set.
/// @throws what `body` throws first; std::logic_error naming `what` for misuse (see above). Waiting fibers
/// are dropped then, not unwound.
template <class Body>
void run(const char* what, dim3 blocks, dim3 threads, size_t shared_bytes, const Body& body) {
  run_blocks(
      what, blocks, threads, shared_bytes, [](const void* b) { (*static_cast<const Body*>(b))(); }, &body);
}

/// Same as run(), when the stream (null: the default one) reaches it; late.h says when that is. @param kernel
/// the argument of cudaFuncSetAttribute
template <class Body>
cudaError_t launch(cudaStream_t stream, const char* what, const void* kernel, dim3 blocks, dim3 threads,
                   size_t shared_bytes, const Body& body) {
  const auto result = static_cast<cudaError_t>(check_shared_memory(kernel, shared_bytes));
  if (result == cudaSuccess) issue_on(stream, [=] { run(what, blocks, threads, shared_bytes, body); });
  return result;
}

void* dynamic_shared();

enum class Vote { none, any, all, count };
/// Waits for all live threads of the block.
int block_barrier(Vote vote, bool predicate, const Place& place);

enum class Warp { sync, shuffle, ballot, add, min, max, bit_and, bit_or, bit_xor, match };
/// Waits for the lanes named in `mask`; `source` is the lane that a shuffle reads.
uint64_t warp_operation(Warp operation, unsigned mask, uint64_t value, unsigned source, const Place& place);
/// Returns the calling thread's lane in its warp.
unsigned lane();

/// Returns when `ready(what)` is true; other threads run meanwhile.
void wait_until(bool (*ready)(const void*), const void* what, const Place& place);
/// Queues work that the chip does by itself: some time before the block ends, as late as the threads that
/// wait for it allow.
void later(std::function<void()> work);
/// Number of the running block, never the same twice on one OS thread.
uint64_t block_number();
/// Dynamic shared memory by the addresses of its own space; it begins at a multiple of 128, not of 256.
uint32_t shared_address(const void* p);
unsigned char* shared_at(uint32_t address, size_t bytes);
/// Ends the kernel with a std::logic_error that names it and the block.
[[noreturn]] void misuse(const std::string& what);

/// The lane a shuffle reads, by the rules of PTX's shfl: its own when the other is not in its segment.
inline unsigned segment_end(int width) { return (lane() & ~(unsigned(width) - 1)) + unsigned(width); }
inline unsigned segment_begin(int width) { return lane() & ~(unsigned(width) - 1); }

template <class T>
T shuffle(unsigned mask, T value, unsigned source, const Place& place) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8, "shuffles move 2, 4 or 8 bytes");
  uint64_t word = 0;
  __builtin_memcpy(&word, &value, sizeof value);
  word = warp_operation(Warp::shuffle, mask, word, source, place);
  __builtin_memcpy(&value, &word, sizeof value);
  return value;
}

}  // namespace cuda_host

inline void __syncthreads(cuda_host::Place place = cuda_host::Place::current()) {
  cuda_host::block_barrier(cuda_host::Vote::none, false, place);
}
inline int __syncthreads_or(int predicate, cuda_host::Place place = cuda_host::Place::current()) {
  return cuda_host::block_barrier(cuda_host::Vote::any, predicate != 0, place);
}
inline int __syncthreads_and(int predicate, cuda_host::Place place = cuda_host::Place::current()) {
  return cuda_host::block_barrier(cuda_host::Vote::all, predicate != 0, place);
}
inline int __syncthreads_count(int predicate, cuda_host::Place place = cuda_host::Place::current()) {
  return cuda_host::block_barrier(cuda_host::Vote::count, predicate != 0, place);
}

inline void __syncwarp(unsigned mask = ~0u, cuda_host::Place place = cuda_host::Place::current()) {
  cuda_host::warp_operation(cuda_host::Warp::sync, mask, 0, 0, place);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32,
              cuda_host::Place place = cuda_host::Place::current()) {
  return cuda_host::shuffle(
      mask, value, cuda_host::segment_begin(width) | (unsigned(from) & (unsigned(width) - 1)), place);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 cuda_host::Place place = cuda_host::Place::current()) {
  const unsigned me = cuda_host::lane();
  const bool inside = me >= cuda_host::segment_begin(width) + delta;
  return cuda_host::shuffle(mask, value, inside ? me - delta : me, place);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   cuda_host::Place place = cuda_host::Place::current()) {
  const unsigned me = cuda_host::lane();
  const bool inside = delta < cuda_host::segment_end(width) - me;
  return cuda_host::shuffle(mask, value, inside ? me + delta : me, place);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                  cuda_host::Place place = cuda_host::Place::current()) {
  const unsigned me = cuda_host::lane(), other = me ^ unsigned(bits);
  return cuda_host::shuffle(mask, value, other < cuda_host::segment_end(width) ? other : me, place);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              cuda_host::Place place = cuda_host::Place::current()) {
  return static_cast<unsigned>(
      cuda_host::warp_operation(cuda_host::Warp::ballot, mask, predicate != 0, 0, place));
}
inline int __any_sync(unsigned mask, int predicate, cuda_host::Place place = cuda_host::Place::current()) {
  return __ballot_sync(mask, predicate, place) != 0;
}
inline int __all_sync(unsigned mask, int predicate, cuda_host::Place place = cuda_host::Place::current()) {
  return __ballot_sync(mask, predicate, place) == mask;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, cuda_host::Place place = cuda_host::Place::current()) {
  uint64_t word = 0;
  __builtin_memcpy(&word, &value, sizeof value);
  return static_cast<unsigned>(cuda_host::warp_operation(cuda_host::Warp::match, mask, word, 0, place));
}

// Only for int and unsigned, as in CUDA. Signed minima order by the value with its sign bit flipped.
#define CUDA_HOST_WARP_REDUCE(name, operation)                                                          \
  inline unsigned name(unsigned mask, unsigned v, cuda_host::Place p = cuda_host::Place::current()) {   \
    return static_cast<unsigned>(cuda_host::warp_operation(cuda_host::Warp::operation, mask, v, 0, p)); \
  }
#define CUDA_HOST_WARP_REDUCE_SIGNED(name, flip)                                                        \
  inline int name(unsigned mask, int v, cuda_host::Place p = cuda_host::Place::current()) {             \
    return static_cast<int>(name(mask, static_cast<unsigned>(v) ^ unsigned{flip}, p) ^ unsigned{flip}); \
  }
CUDA_HOST_WARP_REDUCE(__reduce_add_sync, add)
CUDA_HOST_WARP_REDUCE(__reduce_min_sync, min)
CUDA_HOST_WARP_REDUCE(__reduce_max_sync, max)
CUDA_HOST_WARP_REDUCE(__reduce_and_sync, bit_and)
CUDA_HOST_WARP_REDUCE(__reduce_or_sync, bit_or)
CUDA_HOST_WARP_REDUCE(__reduce_xor_sync, bit_xor)
CUDA_HOST_WARP_REDUCE_SIGNED(__reduce_add_sync, 0u)
CUDA_HOST_WARP_REDUCE_SIGNED(__reduce_min_sync, 0x80000000u)
CUDA_HOST_WARP_REDUCE_SIGNED(__reduce_max_sync, 0x80000000u)
#undef CUDA_HOST_WARP_REDUCE
#undef CUDA_HOST_WARP_REDUCE_SIGNED

#include "intrinsics.h"
