// Softmax over long rows of logits, for the two forms of cross-entropy. Private to CUDA kernels.
#pragma once

#include <sherd/kernels/device/cuda/mma.h>
#include <sherd/kernels/device/cuda/rows.h>

namespace sherd::cuda {

struct Softmax {
  float max, sum;  // sum of exp(x - max); -inf and 0 of an empty row
};

/// Within 3e-7 of e^x for x in [-1, 0]; below, within 1e-7 of it in absolute terms; results below 2^-126 are
/// 0. exp2f would be the same instruction plus two more and a comparison, for subnormal results: a quarter of
/// all instructions of these kernels.
__device__ inline float exp_of(float x) { return fast_exp2(x * 1.44269504f); }

/// A row of logits, in a matrix whose rows are ld elements apart: aligned, where those begin at multiples of
/// 16 bytes, whatever the number of columns. Memory behind the row is not written.
template <class T, bool kAligned>
struct LogitsRow : PackedRow<T, kAligned> {
  using P = Pack<T>;
  __device__ LogitsRow(Ref matrix, int64_t row, int64_t cols, int64_t ld)
      : PackedRow<T, kAligned>{static_cast<T*>(matrix.data) + row * ld, static_cast<int>(cols)} {}

  __device__ P load(int pack, float outside = 0) const {
    const P p = PackedRow<T, kAligned>::load(pack, outside);
    if constexpr (kAligned) {
      const int left = from(pack);
      if (left < P::kCount && left > 0) return pack_of<T>([&](int k) { return k < left ? p[k] : outside; });
    }
    return p;
  }
  __device__ void store(int pack, const P& p) const {
    if (!kAligned || from(pack) >= P::kCount) return PackedRow<T, kAligned>::store(pack, p);
    PackedRow<T, false>{this->data, this->count}.store(pack, p);
  }
  /// Elements of the row from this pack on.
  __device__ int from(int pack) const { return this->count - pack * P::kCount; }
};

constexpr int kAhead = 4;  // packs of a row that a thread asks for before it uses the first

/// Maximum and sum of a row that kThreads threads share. The first `cached` packs are left in `cache`, each
/// by the thread that will work on it again. A NaN gives a sum of NaN, whatever the maximum.
template <int kThreads, class Row>
__device__ Softmax softmax_of(const Row& row, int thread, typename Row::P* cache, int cached) {
  using P = typename Row::P;
  const int packs = row.packs();
  float max = -INFINITY, sum = 0;
  for (int first = thread; first < packs; first += kAhead * kThreads) {
    P x[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) x[i] = row.load(first + i * kThreads, -INFINITY);
    float top = max;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int k = 0; k < P::kCount; ++k) top = fmaxf(top, x[i][k]);
      if (first + i * kThreads < cached) cache[first + i * kThreads] = x[i];
    }
    const float shift = top == -INFINITY ? 0 : top;  // avoids -inf - -inf, which is NaN
    float more = 0;
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
#pragma unroll
      for (int k = 0; k < P::kCount; ++k) more += exp_of(x[i][k] - shift);
    sum = fmaf(sum, exp_of(max - shift), more);
    max = top;
  }
  const float top = group_reduce<kThreads>(max, Max{});
  if (max != -INFINITY) sum *= exp_of(max - top);
  return {top, group_reduce<kThreads>(sum, Add{})};
}

/// dx = exp(x - shift) * factor for this thread's packs, the first `cached` of which are in `cache`. dx may
/// be x.
template <int kThreads, class Row>
__device__ void scaled_exp(const Row& dx, const Row& x, int thread, const typename Row::P* cache, int cached,
                           float shift, float factor) {
  using T = std::remove_cvref_t<decltype(*x.data)>;
  const int packs = x.packs();
  for (int first = thread; first < packs; first += kAhead * kThreads) {
    typename Row::P v[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int pack = first + i * kThreads;
      v[i] = pack < cached ? cache[pack] : x.load(pack);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int pack = first + i * kThreads;
      if (pack < packs) dx.store(pack, pack_of<T>([&](int k) { return exp_of(v[i][k] - shift) * factor; }));
    }
  }
}

/// Sets this thread's packs to 0.
template <int kThreads, class Row>
__device__ void zero_row(const Row& dx, int thread) {
  using T = std::remove_cvref_t<decltype(*dx.data)>;
  for (int pack = thread; pack < dx.packs(); pack += kThreads)
    dx.store(pack, pack_of<T>([](int) { return 0.0f; }));
}

/// Returns whether this thread writes element `column` in scaled_exp.
template <int kThreads, class T>
__device__ bool owns(int thread, int64_t column) {
  return column / Pack<T>::kCount % kThreads == thread;
}

/// Calls f(threads of a row, whether rows are aligned) for rows of `cols` logits that are ld elements apart.
template <class T, class F>
void with_logits_form(int64_t cols, int64_t ld, std::initializer_list<const void*> matrices, F&& f) {
  with_flag(rows_aligned<T>(ld, matrices), [&](auto aligned) {
    const int64_t packs = packs_of<T>(cols);
    if (packs <= 128) return f(RowThreads<32>{}, aligned);
    if (packs <= 2048) return f(RowThreads<256>{}, aligned);
    // Two such rows fit in the shared memory of a Hopper multiprocessor, longer ones do not.
    if (packs <= 7168) return f(RowThreads<512>{}, aligned);
    return f(RowThreads<1024>{}, aligned);
  });
}

}  // namespace sherd::cuda
