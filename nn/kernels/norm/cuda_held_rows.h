// Rows that their threads keep in registers, and sums over rows, for the normalisations. Private to CUDA kernels.
#pragma once

#include <sherd/kernels/device/cuda/rows.h>

namespace sherd::cuda {

inline constexpr int kHeld = 4;  // packs of a row that each of its threads keeps in registers

/// This thread's packs of a row: the first kHeld in registers, further ones read again whenever they are
/// asked for.
template <class T, int kThreads, bool kAligned>
struct HeldRow {
  PackedRow<T, kAligned> row;
  int thread;
  Pack<T> held[kHeld];

  __device__ HeldRow(const PackedRow<T, kAligned>& from, int me) : row(from), thread(me) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) held[k] = row.load(thread + k * kThreads);
  }
};

/// Calls f(k, pack) for this thread's packs that rows keep in registers, k being which of them, and g(pack)
/// for the others.
template <int kThreads, class F, class G>
__device__ void each_pack(int packs, int thread, F f, G g) {
#pragma unroll
  for (int k = 0; k < kHeld; ++k)
    if (thread + k * kThreads < packs) f(k, thread + k * kThreads);
  for (int pack = thread + kHeld * kThreads; pack < packs; pack += kThreads) g(pack);
}

inline constexpr int kSlices = 32;

/// dw[c] += the sum of column c of sums [parts, cols]: slice s adds rows s, s + kSlices, ..., then the slices
/// add up in order.
static __global__ void __launch_bounds__(kWarp* kSlices)
    add_columns(float* dw, const float* sums, int64_t parts, int64_t cols) {
  const int64_t c = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  float sum = 0;
#pragma unroll 8
  for (int64_t p = threadIdx.y; p < parts; p += kSlices)
    if (c < cols) sum += sums[p * cols + c];
  __shared__ float of_slice[kSlices * kWarp];
  of_slice[threadIdx.y * kWarp + threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= cols) return;
  for (int s = 1; s < kSlices; ++s) sum += of_slice[s * kWarp + threadIdx.x];
  dw[c] += sum;
}

/// Calls f(threads of a row, whether rows are aligned): as few threads as hold a row in registers, so that
/// small reductions suffice.
template <class T, class F>
void with_form(int64_t cols, std::initializer_list<const void*> matrices, F&& f) {
  with_flag(rows_aligned<T>(cols, matrices), [&](auto aligned) {
    const int64_t packs = packs_of<T>(cols);
    if (packs <= kHeld * 32) return f(RowThreads<32>{}, aligned);
    if (packs <= kHeld * 128) return f(RowThreads<128>{}, aligned);
    if (packs <= kHeld * 256) return f(RowThreads<256>{}, aligned);
    return f(RowThreads<512>{}, aligned);
  });
}

/// dw[c] += the sums of groups of kThreads threads, at most a chip's full of them, which `backward` leaves in
/// memory [parts, cols] that it is given: group p has taken rows p, p + parts, ...
template <int kThreads, class Backward>
void add_row_sums(ExecutionContext& context, const char* what, float* dw, int64_t rows, int64_t cols,
                  Backward backward) {
  // About 500 threads on each multiprocessor of the largest chips, whose registers are then full.
  constexpr int64_t kMost = 65536 / kThreads;
  const int64_t parts = rows < kMost ? rows : kMost;
  auto* sums = static_cast<float*>(context.scratch(parts * cols * 4));
  backward(grid_of_rows<kThreads>(parts), sums, parts);
  const Grid columns{dim3(static_cast<unsigned>((cols + kWarp - 1) / kWarp)), dim3(kWarp, kSlices)};
  launch(context, what, add_columns, columns, dw, sums, parts, cols);
}

}  // namespace sherd::cuda
