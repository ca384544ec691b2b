// Rows that their threads keep in registers, and the backward over rows, for the normalisations. Private to CUDA kernels.
#pragma once

#include <sherd/kernels/device/cuda/rows.h>

namespace sherd::cuda {

inline constexpr int kHeld = 4;  // packs of a row that each of its threads keeps in registers

/// This thread's packs of a row: the first kHeld in registers, further ones read again at each use.
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

/// Group p takes rows p, p + parts, ... and leaves their sum for dw in row p of `sums` [parts, cols]. `Row` is
/// one row of the normalisation: constructed from (a, row); add(dy, w, x) adds a pack to its sums,
/// reduce<kThreads>(cols) completes them, and gradient(dy, w, x, dw) returns dx and adds the row's share of dw.
template <class Row, class T, int kThreads, bool kAligned, class Args>
__global__ void __launch_bounds__(kBlockThreads<kThreads>) backward_rows(Args a, float* sums, int64_t parts) {
  constexpr int kCount = Pack<T>::kCount;
  const RowThread<kThreads> me;
  if (me.row >= parts) return;
  const PackedRow<T, kAligned> w = row_of<T, kAligned>(a.w, 0, a.cols);
  const int packs = w.packs();
  float* const mine = sums + me.row * a.cols;
  // Its elements [pack * kCount, ...) are this thread's alone.
  const auto keep = [&](int pack, const float(&dw)[kCount]) {
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      if (pack * kCount + k < a.cols) mine[pack * kCount + k] = dw[k];
  };
  float sum[kHeld][kCount] = {};
  for (int64_t row = me.row; row < a.rows; row += parts) {
    const HeldRow<T, kThreads, kAligned> x(row_of<T, kAligned>(a.x, row, a.cols), me.thread);
    const HeldRow<T, kThreads, kAligned> dy(row_of<T, kAligned>(a.dy, row, a.cols), me.thread);
    const PackedRow<T, kAligned> dx = row_of<T, kAligned>(a.dx, row, a.cols);
    // dx may be the addend, as well as dy or x: all of a pack is read before it is written.
    const auto put_gradient = [&](int pack, const Pack<T>& gradient) {
      if (a.addend.data == nullptr) return dx.store(pack, gradient);
      const Pack<T> more = row_of<T, kAligned>(a.addend, row, a.cols).load(pack);
      dx.store(pack, pack_of<T>([&](int k) { return __fadd_rn(more[k], gradient[k]); }));
    };
    Row of(a, row);
    each_pack<kThreads>(
        packs, me.thread, [&](int k, int pack) { of.add(dy.held[k], w.load(pack), x.held[k]); },
        [&](int pack) { of.add(dy.row.load(pack), w.load(pack), x.row.load(pack)); });
    of.template reduce<kThreads>(a.cols);
    each_pack<kThreads>(
        packs, me.thread,
        [&](int k, int pack) {
          put_gradient(pack, of.gradient(dy.held[k], w.load(pack), x.held[k], sum[k]));
        },
        [&](int pack) {
          float dw[kCount];
#pragma unroll
          for (int k = 0; k < kCount; ++k)
            dw[k] = row == me.row || pack * kCount + k >= a.cols ? 0 : mine[pack * kCount + k];
          put_gradient(pack, of.gradient(dy.row.load(pack), w.load(pack), x.row.load(pack), dw));
          keep(pack, dw);
        });
  }
  each_pack<kThreads>(
      packs, me.thread, [&](int k, int pack) { keep(pack, sum[k]); }, [](int) {});
}

/// Queues the backward of a normalisation of rows, at most a chip's full of groups of threads: dx, and
/// dw[c] += the sums of the groups.
template <class Row, class Args>
void norm_backward(ExecutionContext& context, const char* what, const Args& a) {
  if (a.rows == 0 || a.cols == 0) return;
  with_f32_bf16(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    with_form<T>(
        a.cols, {a.x.data, a.w.data, a.dy.data, a.dx.data, a.addend.data}, [&](auto threads, auto aligned) {
          // About 500 threads on each multiprocessor of the largest chips, whose registers are then full.
          constexpr int64_t kMost = 65536 / threads();
          const int64_t parts = a.rows < kMost ? a.rows : kMost;
          auto* sums = static_cast<float*>(context.scratch(parts * a.cols * 4));
          launch(context, what, backward_rows<Row, T, threads(), aligned(), Args>,
                 grid_of_rows<threads()>(parts), a, sums, parts);
          const Grid columns{dim3(static_cast<unsigned>((a.cols + kWarp - 1) / kWarp)), dim3(kWarp, kSlices)};
          launch(context, what, add_columns, columns, a.dw.template as<float>(), sums, parts, a.cols);
        });
  });
}

}  // namespace sherd::cuda
