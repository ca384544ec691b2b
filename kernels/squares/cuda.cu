#include <sherd/kernels/squares/squares.h>

#include <cfloat>

#include <sherd/kernels/device/cuda/segments.h>
#include <sherd/kernels/rest/cuda_forms.h>
#include <sherd/kernels/squares/exact_sum.h>

#include "cuda_shift.h"

// The exact sum of squares. |x| is mantissa * 2^(exponent - 150), mantissa below 2^24, so its square's 48
// bits begin at bit 2 * exponent + 20 of the fixed-point number. Elements of a tensor are of similar size:
// each warp keeps a window of 32 exponents, and per thread four 64-bit sums of the squares inside, their
// lower and upper 24 bits apart and shifted by less than 32 bits: 2^55 at most, so that kFlush of them fit.
// What lies above the window moves it; what lies below, and subnormals, goes to the block's digits one by
// one. All of it is integer sums, so no order shows.

namespace sherd::cuda {
namespace {

using Digit = unsigned long long;  // what atomicAdd takes

constexpr int kWindow = 32, kLargestExponent = 254, kThreads = 256;
/// A window moves to where the largest exponent is this far from its upper end.
constexpr int kRoom = 4;
constexpr int kFlush = 512, kUnroll = 8;
static_assert(kFlush % (4 * kUnroll) == 0);
/// Blocks of add_squares on a processor: 80 registers a thread for 96 KiB of loads in flight. The grid has two rounds
/// of them.
constexpr int kResident = 3, kBlocks = 132 * 2 * kResident;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ int exponent_of(uint32_t bits) { return static_cast<int>(bits >> 23 & 0xff); }
__device__ bool is_zero(uint32_t bits) { return bits << 1 == 0; }

/// digits += value * 2^position
__device__ void add_at(Digit* digits, int position, uint64_t value) {
  if (value == 0) return;
  const int digit = position / 32, shift = position % 32;
  const uint64_t low = value << shift, high = shift == 0 ? 0 : value >> (64 - shift);
  atomicAdd(&digits[digit], Digit{low & 0xffffffffu});
  atomicAdd(&digits[digit + 1], Digit{low >> 32});
  if (high != 0) atomicAdd(&digits[digit + 2], Digit{high});
}

/// One thread's part of its warp's window. Functions that say so are called by whole warps.
class WindowSums {
 public:
  __device__ explicit WindowSums(Digit* words) : words_(words) {}

  /// Adds the squares of a warp's elements; at most kFlush of a thread between two calls of flush(). Whole
  /// warp.
  template <int N>
  __device__ void add(const Vec<float, N>& x) {
    bool outside = false;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const uint32_t bits = __float_as_uint(x[k]);
      zeros_ += is_zero(bits);
      add_inside(bits);
      outside |= is_outside(bits);
    }
    if (__any_sync(kAllLanes, outside)) add_outside(x);
  }
  /// Subtracts `count` zeros of the padding, which are not elements.
  __device__ void forget_zeros(int count) { zeros_ -= count; }

  /// Moves the sums to the block's digits; the window restarts. Whole warp.
  __device__ void flush() {
    move_sums();
    base_ = 1;
  }
  /// The same with the numbers of zeros and of non-finite elements. Whole warp.
  __device__ void add_counts() {
    const int zeros = __reduce_add_sync(kAllLanes, zeros_),
              non_finite = __reduce_add_sync(kAllLanes, non_finite_);
    zeros_ = non_finite_ = 0;
    if (threadIdx.x % 32 != 0) return;
    atomicAdd(&words_[ExactSum::kZeros], static_cast<Digit>(zeros));
    atomicAdd(&words_[ExactSum::kNonFinite], static_cast<Digit>(non_finite));
  }

 private:
  /// Twice the distance from the window's lower end; 2 * kWindow or more outside.
  __device__ uint32_t shift_of(uint32_t bits) const {
    return (bits >> 22 & 0x1fe) - 2 * static_cast<uint32_t>(base_);
  }
  __device__ bool is_outside(uint32_t bits) const { return shift_of(bits) >= 2 * kWindow && !is_zero(bits); }

  /// Adds nothing when it is outside.
  __device__ void add_inside(uint32_t bits) {
    const uint32_t mantissa = (bits & 0x7fffffu) | 0x800000u;
    // The halves of the square, by products of 32 bits: ptxas does not see that a half of 64 bits ends at bit 24.
    const uint32_t lower = mantissa * mantissa & 0xffffffu, upper = __umulhi(mantissa << 4, mantissa << 4);
    const uint32_t shift = shift_of(bits);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t factor = shift_left(1, shift - 32 * half);
      lower_[half] += uint64_t{lower} * factor;
      upper_[half] += uint64_t{upper} * factor;
    }
  }

  /// Whole warp.
  template <int N>
  __device__ void add_outside(const Vec<float, N>& x) {
    bool outside[N];
    int top = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const uint32_t bits = __float_as_uint(x[k]);
      const int exponent = exponent_of(bits);
      outside[k] = is_outside(bits) && exponent <= kLargestExponent;
      non_finite_ += exponent > kLargestExponent;
      if (outside[k] && exponent > top) top = exponent;
    }
    top = __reduce_max_sync(kAllLanes, top);
    if (top >= base_ + kWindow) {
      move_sums();
      base_ = min(top + kRoom, kLargestExponent) - kWindow + 1;
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const uint32_t bits = __float_as_uint(x[k]);
      if (!outside[k]) continue;
      if (is_outside(bits)) {
        add_alone(bits);
      } else {
        add_inside(bits);
      }
    }
  }

  __device__ void add_alone(uint32_t bits) {
    const int exponent = exponent_of(bits);
    const uint64_t mantissa = (bits & 0x7fffffu) | (exponent != 0 ? 0x800000u : 0u);
    add_at(words_, position_of(max(exponent, 1)), mantissa * mantissa);
  }
  static __device__ int position_of(int exponent) { return 2 * exponent - 300 + ExactSum::kBias; }

  /// Whole warp.
  __device__ void move_sums() {
    // Digits of 32 bits from the window's lower end, each below 2^34 and in 64 bits.
    const auto low = [](uint64_t v) { return v & 0xffffffffu; };
    uint64_t digits[4] = {low(lower_[0]) + low(upper_[0] << 24),
                          (lower_[0] >> 32) + (upper_[0] << 24 >> 32) + low(lower_[1]) + low(upper_[1] << 24),
                          (upper_[0] >> 40) + (lower_[1] >> 32) + (upper_[1] << 24 >> 32), upper_[1] >> 40};
    uint64_t mine = 0;
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      for (int step = 16; step > 0; step /= 2) digits[d] += __shfl_xor_sync(kAllLanes, digits[d], step);
      if (lane == d) mine = digits[d];
    }
    if (lane < 4) add_at(words_, position_of(base_) + 32 * lane, mine);
    lower_[0] = lower_[1] = upper_[0] = upper_[1] = 0;
  }

  Digit* words_;
  int base_ = 1;  // the smallest exponent of the window; the same in the whole warp
  uint64_t lower_[2] = {}, upper_[2] = {};
  int zeros_ = 0, non_finite_ = 0;
};

/// Segments of a launch, by value: tiles of kUnroll groups of four to a thread. The elements before and
/// behind the groups, six at most, belong to a segment's first tile.
struct SquaresBatch {
  int count = 0;
  DType dtype = DType::f32;  // of all
  const void* x[kSegments];
  Cover covers[kSegments];
  Digit* sums[kSegments];             // null: only counted
  Digit* non_finite[kSegments];       // may be null
  int64_t tiles[kSegments + 1] = {};  // tiles of the segments before
};
constexpr int64_t kSquaresTile = kUnroll * kThreads;

template <class Values>
__device__ Values values_of(const void* x) {
  return {static_cast<decltype(Values::at)>(const_cast<void*>(x))};
}

/// Adds a block's digits to a segment's words, and clears them. Whole block.
__device__ void hand_over(Digit* words, Digit* sum, Digit* non_finite) {
  __syncthreads();
  if (threadIdx.x < ExactSum::kWords) {
    const Digit word = words[threadIdx.x];
    words[threadIdx.x] = 0;
    if (word != 0 && sum != nullptr) atomicAdd(&sum[threadIdx.x], word);
    if (word != 0 && threadIdx.x == ExactSum::kNonFinite && non_finite != nullptr)
      atomicAdd(non_finite, word);
  }
  __syncthreads();
}

template <class Values>
__global__ void __launch_bounds__(kThreads, kResident)
    add_squares(const __grid_constant__ SquaresBatch batch) {
  __shared__ Digit words[ExactSum::kWords];
  if (threadIdx.x < ExactSum::kWords) words[threadIdx.x] = 0;
  __syncthreads();

  WindowSums sums(words);
  int s = 0, added = 0;
  for (int64_t tile = blockIdx.x; tile < batch.tiles[batch.count]; tile += gridDim.x) {
    const int before = s;
    while (batch.tiles[s + 1] <= tile) ++s;
    if (batch.sums[s] != batch.sums[before] || batch.non_finite[s] != batch.non_finite[before]) {
      sums.flush();
      sums.add_counts();
      hand_over(words, batch.sums[before], batch.non_finite[before]);
      added = 0;
    }
    const Values x = values_of<Values>(batch.x[s]);
    const Cover cover = batch.covers[s];
    if (tile == batch.tiles[s] && threadIdx.x < 32) {
      const int64_t lane = threadIdx.x;
      const bool is_element = lane < cover.singles(4);
      sums.forget_zeros(!is_element);
      sums.add(Vec<float, 1>{is_element ? x.template get<1>(cover.single(lane, 4))[0] : 0.0f});
      sums.flush();
    }
    const int64_t first = (tile - batch.tiles[s]) * kSquaresTile;
    const int groups = static_cast<int>(min(cover.vecs - first, kSquaresTile));  // of the block
    // All loads precede the first use, so that kUnroll of each thread are in flight.
    Vec<float, 4> v[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (const int i = u * kThreads + static_cast<int>(threadIdx.x); i < groups)
        v[u] = x.template get<4>(cover.head + 4 * (first + i));
    const int last = groups % kThreads;  // in a row of groups that is not full; the other threads add zeros
    if (last != 0 && static_cast<int>(threadIdx.x) >= last) sums.forget_zeros(4);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u * kThreads >= groups) break;
      sums.add(v[u]);
    }
    added += 4 * kUnroll;
    if (added == kFlush) {
      sums.flush();
      added = 0;
    }
  }
  sums.flush();
  sums.add_counts();
  hand_over(words, batch.sums[s], batch.non_finite[s]);
}

/// Sum of magnitudes of one thread, whose exponents are in a window of 32. The window moves to where elements
/// are. 2^8 mantissas of 24 bits, shifted by less than 32, fit into 64 bits.
class MagnitudeSum {
 public:
  __device__ explicit MagnitudeSum(Digit* words) : words_(words) {}
  __device__ void add(float x) {
    const uint32_t bits = __float_as_uint(x);
    const int exponent = exponent_of(bits);
    if (is_zero(bits)) {
      ++zeros_;
    } else if (exponent > kLargestExponent) {
      ++non_finite_;
    } else {
      const uint64_t mantissa = (bits & 0x7fffffu) | (exponent != 0 ? 0x800000u : 0u);
      const int at = max(exponent, 1);
      if (at < base_ || at >= base_ + kWindow || held_ == 256) {
        flush();
        base_ = max(at - kWindow / 2, 1);
      }
      sum_ += mantissa << (at - base_);
      ++held_;
    }
  }
  __device__ void flush() {
    add_at(words_, base_ - 150 + ExactSum::kBias, sum_);
    sum_ = 0;
    held_ = 0;
  }
  __device__ void add_counts() {
    if (zeros_ != 0) atomicAdd(&words_[ExactSum::kZeros], static_cast<Digit>(zeros_));
    if (non_finite_ != 0) atomicAdd(&words_[ExactSum::kNonFinite], static_cast<Digit>(non_finite_));
    zeros_ = non_finite_ = 0;
  }

 private:
  Digit* words_;
  int base_ = 1, held_ = 0, zeros_ = 0, non_finite_ = 0;
  uint64_t sum_ = 0;
};

/// f(x) for the elements of a tile of segment s that are this thread's.
template <class Values, class F>
__device__ void for_tile(const SquaresBatch& batch, int s, int64_t tile, const F& f) {
  const Values x = values_of<Values>(batch.x[s]);
  const Cover cover = batch.covers[s];
  if (tile == batch.tiles[s] && static_cast<int64_t>(threadIdx.x) < cover.singles(4))
    f(x.template get<1>(cover.single(static_cast<int64_t>(threadIdx.x), 4))[0]);
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = (tile - batch.tiles[s]) * kSquaresTile + u * kThreads + threadIdx.x;
    if (i >= cover.vecs) continue;
    const Vec<float, 4> v = x.template get<4>(cover.head + 4 * i);
    for (int k = 0; k < 4; ++k) f(v[k]);
  }
}

template <class Values>
__global__ void __launch_bounds__(kThreads) add_magnitudes(const __grid_constant__ SquaresBatch batch) {
  __shared__ Digit words[ExactSum::kWords];
  if (threadIdx.x < ExactSum::kWords) words[threadIdx.x] = 0;
  __syncthreads();
  MagnitudeSum sum(words);
  int s = 0;
  for (int64_t tile = blockIdx.x; tile < batch.tiles[batch.count]; tile += gridDim.x) {
    const int before = s;
    while (batch.tiles[s + 1] <= tile) ++s;
    if (batch.sums[s] != batch.sums[before] || batch.non_finite[s] != batch.non_finite[before]) {
      sum.flush();
      sum.add_counts();
      hand_over(words, batch.sums[before], batch.non_finite[before]);
    }
    for_tile<Values>(batch, s, tile, [&](float x) { sum.add(x); });
  }
  sum.flush();
  sum.add_counts();
  hand_over(words, batch.sums[s], batch.non_finite[s]);
}

/// Floats that are not negative are in the order of their bits.
template <class Values>
__global__ void __launch_bounds__(kThreads)
    find_largest(const __grid_constant__ SquaresBatch batch, unsigned* largest) {
  unsigned mine = 0;
  int s = 0;
  for (int64_t tile = blockIdx.x; tile < batch.tiles[batch.count]; tile += gridDim.x) {
    while (batch.tiles[s + 1] <= tile) ++s;
    for_tile<Values>(batch, s, tile, [&](float x) {
      const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
      if (exponent_of(bits) <= kLargestExponent && bits > mine) mine = bits;
    });
  }
  mine = __reduce_max_sync(kAllLanes, mine);
  if (threadIdx.x % 32 == 0 && mine != 0) atomicMax(largest, mine);
}

/// Same as ExactSum::normalise.
__device__ void normalise(int64_t* words) {
  int64_t carry = 0;
  for (int i = 0; i + 1 < ExactSum::kDigits; ++i) {
    const int64_t digit = words[i] + carry;
    carry = digit >> 32;
    words[i] = digit & 0xffffffff;
  }
  words[ExactSum::kDigits - 1] += carry;
}

constexpr int kAccumulators = 128;
struct Sums {
  int count;
  int64_t* words[kSegments];
};

/// One thread for each.
__global__ void normalise_words(Sums sums) {
  if (static_cast<int>(threadIdx.x) < sums.count) normalise(sums.words[threadIdx.x]);
}

/// Same as ExactSum::value for words without non-finite elements.
__device__ double value_of(int64_t* words) {
  normalise(words);
  const auto digit = [&](int i) { return i < 0 ? uint64_t{0} : static_cast<uint64_t>(words[i]); };
  int top = ExactSum::kDigits - 1;
  while (top > 0 && digit(top) == 0) --top;
  if (digit(top) == 0) return 0;
  // The leading 64 bits, with all lower ones folded into the last (sticky) bit, round correctly to 53.
  const int shift = __clz(static_cast<int>(digit(top)));
  uint64_t lead = ((digit(top) << 32 | digit(top - 1)) << shift) | (digit(top - 2) << shift) >> 32;
  bool sticky = static_cast<uint32_t>(digit(top - 2) << shift) != 0;
  for (int i = 0; i < top - 2; ++i) sticky = sticky || digit(i) != 0;
  lead |= sticky ? 1u : 0u;
  return ldexp(__ull2double_rn(lead), 32 * (top - 1) - ExactSum::kBias - shift);
}

struct Accumulators {
  int count;
  const int64_t* words[kAccumulators];
};

/// sum (+)= the accumulators, word by word. One warp.
__global__ void sum_words(int64_t* sum, Accumulators from, bool add) {
  const unsigned w = threadIdx.x;
  if (w >= ExactSum::kWords) return;
  Digit total = add ? static_cast<Digit>(sum[w]) : 0;
  for (int i = 0; i < from.count; ++i) total += static_cast<Digit>(from.words[i][w]);
  sum[w] = static_cast<int64_t>(total);
}

/// One thread.
__global__ void make_factor(float* factor, int64_t* total, int64_t* skip, const int64_t* sum, float max_norm,
                            NormKind kind, const float* largest) {
  int64_t words[ExactSum::kWords];
  for (int i = 0; i < ExactSum::kWords; ++i) total[i] = words[i] = sum[i];
  *factor = 1;
  bool finite = words[ExactSum::kNonFinite] == 0 && words[ExactSum::kElsewhere] == 0;
  float norm = 0;
  if (finite) {
    norm = kind == NormKind::two   ? static_cast<float>(__dsqrt_rn(value_of(words)))
           : kind == NormKind::one ? static_cast<float>(value_of(words))
                                   : *largest;
    finite = norm <= FLT_MAX;
  }
  if (skip != nullptr) *skip = finite ? 0 : 1;
  if (!finite || !(max_norm > 0)) return;
  const float f = __fdiv_rn(max_norm, __fadd_rn(norm, 1e-6f));
  *factor = f < 1 ? f : 1.0f;
}

struct AddWords {
  static constexpr int kVec = 2;
  uint64_t* dst;  // unsigned: wraps
  const uint64_t* src;

  template <int N>
  __device__ void run(int64_t i) const {
    Vec<uint64_t, N> d = load<N>(dst, i);
    const Vec<uint64_t, N> s = load<N>(src, i);
#pragma unroll
    for (int k = 0; k < N; ++k) d[k] += s[k];
    store(dst, i, d);
  }
};

/// Calls go(batch) for every launch's worth of segments.
template <class Go>
void for_batches(const std::vector<SquaresSegment>& segments, const Go& go) {
  SquaresBatch batch;
  for (const SquaresSegment& segment : segments) {
    if (segment.count <= 0) continue;
    if (batch.count > 0 && segment.dtype != batch.dtype) {
      go(batch);
      batch.count = 0;
    }
    batch.dtype = segment.dtype;
    const int i = batch.count++;
    batch.x[i] = segment.x;
    batch.covers[i] = segment.dtype == DType::f32
                          ? cover<4>(segment.count, static_cast<const float*>(segment.x))
                          : cover<4>(segment.count, static_cast<const uint16_t*>(segment.x));
    batch.sums[i] = reinterpret_cast<Digit*>(segment.sum);
    batch.non_finite[i] = reinterpret_cast<Digit*>(segment.non_finite);
    batch.tiles[i + 1] =
        batch.tiles[i] + std::max<int64_t>(1, (batch.covers[i].vecs + kSquaresTile - 1) / kSquaresTile);
    if (batch.count < kSegments) continue;
    go(batch);
    batch.count = 0;
  }
  if (batch.count > 0) go(batch);
}

Grid grid_of(const SquaresBatch& batch) {
  return Grid{dim3(blocks_of(batch.tiles[batch.count], 1, kBlocks)), dim3(kThreads)};
}

/// `whole` for f32 or `half` for bf16 (add_squares or add_magnitudes), then the sums' carries.
template <class Kernel>
void accumulate(ExecutionContext& context, const char* what, Kernel whole, Kernel half,
                const std::vector<SquaresSegment>& segments) {
  for_batches(segments, [&](const SquaresBatch& batch) {
    launch(context, what, batch.dtype == DType::f32 ? whole : half, grid_of(batch), batch);
    Sums sums{};
    for (int i = 0; i < batch.count; ++i) {
      auto* words = reinterpret_cast<int64_t*>(batch.sums[i]);
      if (words != nullptr &&
          std::find(sums.words, sums.words + sums.count, words) == sums.words + sums.count)
        sums.words[sums.count++] = words;
    }
    if (sums.count > 0) launch(context, what, normalise_words, Grid{dim3(1), dim3(64)}, sums);
  });
}

void accumulate_squares(ExecutionContext& context, const std::vector<SquaresSegment>& segments) {
  accumulate(context, "accumulate_squares", add_squares<InF32>, add_squares<InBf16>, segments);
}

void accumulate_magnitudes(ExecutionContext& context, const std::vector<SquaresSegment>& segments) {
  accumulate(context, "accumulate_magnitudes", add_magnitudes<InF32>, add_magnitudes<InBf16>, segments);
}

void largest_magnitude(ExecutionContext& context, float* largest,
                       const std::vector<SquaresSegment>& segments) {
  for_batches(segments, [&](const SquaresBatch& batch) {
    launch(context, "largest_magnitude",
           batch.dtype == DType::f32 ? find_largest<InF32> : find_largest<InBf16>, grid_of(batch), batch,
           reinterpret_cast<unsigned*>(largest));
  });
}

void clip_factor(ExecutionContext& context, const ClipFactorArgs& a) {
  auto* sum =
      static_cast<int64_t*>(context.scratch(ExactSum::kWords * static_cast<int64_t>(sizeof(int64_t))));
  const int64_t n = static_cast<int64_t>(a.accumulators.size());
  int64_t first = 0;
  do {
    Accumulators from{static_cast<int>(std::min<int64_t>(kAccumulators, n - first)), {}};
    std::copy_n(a.accumulators.begin() + first, from.count, from.words);
    launch(context, "clip_factor", sum_words, Grid{dim3(1), dim3(32)}, sum, from, first > 0);
    first += kAccumulators;
  } while (first < n);
  launch(context, "clip_factor", make_factor, Grid{}, a.factor, a.total, a.skip, sum,
         static_cast<float>(a.max_norm), a.kind, a.largest);
}

void add_words(ExecutionContext& context, int64_t* dst, const int64_t* src, int64_t count) {
  auto* to = reinterpret_cast<uint64_t*>(dst);
  const auto* from = reinterpret_cast<const uint64_t*>(src);
  for_elements(context, "add_words", AddWords{to, from}, count, to, from);
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const SquaresKernels* SquaresKernels::cuda() {
  static constexpr SquaresKernels table{
      .accumulate_squares = cuda::accumulate_squares,
      .accumulate_magnitudes = cuda::accumulate_magnitudes,
      .largest_magnitude = cuda::largest_magnitude,
      .add_words = cuda::add_words,
      .clip_factor = cuda::clip_factor,
  };
  return &table;
}

}  // namespace sherd
