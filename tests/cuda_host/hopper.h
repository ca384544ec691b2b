// kernels/device/cuda/hopper.h for compute capability 9.0, imitated on the host: barriers with phases, copies by the
// copy engine, products of a warpgroup. Addresses, descriptors and the swizzle are those of the PTX manual.
//
// Copies are done when nothing else can run, in changing order. Products are computed when they are waited
// for, from what shared memory has then. A missing or late wait therefore shows.
//
// Reported errors (std::logic_error, beside those of emulation.h): barriers that were not initialised or get
// an arrival too many; products whose operands differ within a warp or are not laid out in 128-byte swizzle;
// products that are never waited for; boxes that a tensor map cannot describe (CUDA_ERROR_INVALID_VALUE).
#pragma once

#include <cuda.h>

#include "emulation.h"

namespace cuda_host::hopper {

void barrier_init(uint64_t* barrier, uint32_t arrivals);
void barrier_arrive(uint64_t* barrier, uint32_t expected_bytes);
void barrier_wait(uint64_t* barrier, uint32_t parity, const Place& place);
void named_barrier(int id, int threads, const Place& place);
void copy_box(void* to, const CUtensorMap* map, int x, int y, int z, uint64_t* barrier);
/// d: the calling thread's columns / 2 accumulators.
void multiply_add(float* d, int columns, uint64_t a, uint64_t b, bool add, bool bf16, const Place& place);
void products_commit(const Place& place);
void products_wait(size_t pending, const Place& place);

}  // namespace cuda_host::hopper

namespace sherd::cuda::hopper {

using cuda_host::Place;

inline uint32_t shared_address(const void* p) { return cuda_host::shared_address(p); }
inline void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  cuda_host::hopper::barrier_init(barrier, arrivals);
}
inline void barrier_init_done() {}
inline void barrier_arrive(uint64_t* barrier) { cuda_host::hopper::barrier_arrive(barrier, 0); }
inline void barrier_arrive_expecting(uint64_t* barrier, uint32_t bytes) {
  cuda_host::hopper::barrier_arrive(barrier, bytes);
}
inline void barrier_wait(uint64_t* barrier, uint32_t parity, Place place = Place::current()) {
  cuda_host::hopper::barrier_wait(barrier, parity, place);
}
inline void named_barrier(int id, int threads, Place place = Place::current()) {
  cuda_host::hopper::named_barrier(id, threads, place);
}
inline void copy_box(void* to, const CUtensorMap* map, int x, int y, int z, uint64_t* barrier) {
  cuda_host::hopper::copy_box(to, map, x, y, z, barrier);
}
inline void prefetch_map(const CUtensorMap*) {}
inline void products_fence() {}
inline void products_commit(Place place = Place::current()) { cuda_host::hopper::products_commit(place); }
template <int Pending>
void products_wait(Place place = Place::current()) {
  cuda_host::hopper::products_wait(Pending, place);
}
template <int kCount>
void hold(float (&)[kCount]) {}
inline void begin_with(int&) {}
template <int kCount>
void multiply_add(float (&d)[kCount], uint64_t a, uint64_t b, int add, __half,
                  Place place = Place::current()) {
  cuda_host::hopper::multiply_add(d, 2 * kCount, a, b, add != 0, false, place);
}
template <int kCount>
void multiply_add(float (&d)[kCount], uint64_t a, uint64_t b, int add, __nv_bfloat16,
                  Place place = Place::current()) {
  cuda_host::hopper::multiply_add(d, 2 * kCount, a, b, add != 0, true, place);
}
template <int>
void give_registers() {}
template <int>
void take_registers() {}

}  // namespace sherd::cuda::hopper
