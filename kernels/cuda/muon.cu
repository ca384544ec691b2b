#include <cfloat>
#include <vector>

#include "cuda.h"
#include "vector.h"

// Passes over lists of segments: single fp32 operations in the reference's order. A launch takes kSegments of
// them by value and shares tiles of elements out among its blocks, so that one huge segment and many small
// ones both fill the chip.

namespace sherd::cuda {
namespace {

constexpr int kSegments = 48, kThreads = 256;
constexpr int64_t kTile = 4 * kThreads;  // groups or single elements, four to a thread

/// Op: what a segment points to, with run<N>(i, common) for elements [i, i + N) of it.
template <class Op>
struct Batch {
  int count = 0;
  Op ops[kSegments];
  Cover covers[kSegments];
  int64_t tiles[kSegments + 1] = {};  // tiles of the segments before
};

template <class Op, class Common>
__global__ void __launch_bounds__(kThreads)
    over_segments(const __grid_constant__ Batch<Op> batch, const __grid_constant__ Common common) {
  int s = 0;
  for (int64_t tile = blockIdx.x; tile < batch.tiles[batch.count]; tile += gridDim.x) {
    while (batch.tiles[s + 1] <= tile) ++s;
    const Op op = batch.ops[s];
    const Cover cover = batch.covers[s];
    const int64_t singles = cover.singles(Op::kVec);
    // Groups come first, then the single elements.
    const int64_t first = (tile - batch.tiles[s]) * kTile + threadIdx.x;
#pragma unroll
    for (int64_t u = first; u < first + kTile; u += kThreads) {
      if (u < cover.vecs) {
        op.template run<Op::kVec>(cover.head + u * Op::kVec, common);
      } else if (u < cover.vecs + singles) {
        op.template run<1>(cover.single(u - cover.vecs, Op::kVec), common);
      }
    }
  }
}

/// make(segment) gives its Op, whose cover() knows its arrays.
template <class Op, class Common, class Segment, class Make>
void for_segments(ExecutionContext& context, const char* what, const std::vector<Segment>& segments,
                  const Common& common, Make make) {
  static_assert(sizeof(Batch<Op>) + sizeof(Common) <= 4096, "kernel parameters");
  Batch<Op> batch;
  const auto flush = [&] {
    const int64_t tiles = batch.tiles[batch.count];
    if (tiles > 0)
      launch(context, what, over_segments<Op, Common>,
             Grid{dim3(blocks_of(tiles, 1, 132 * 16)), dim3(kThreads)}, batch, common);
    batch.count = 0;
  };
  for (const Segment& segment : segments) {
    if (segment.count <= 0) continue;
    const int i = batch.count++;
    batch.ops[i] = make(segment);
    batch.covers[i] = batch.ops[i].cover_of(segment.count);
    const int64_t units = batch.covers[i].vecs + batch.covers[i].singles(Op::kVec);
    batch.tiles[i + 1] = batch.tiles[i] + (units + kTile - 1) / kTile;
    if (batch.count == kSegments) flush();
  }
  flush();
}

struct Momentum {
  float mu, rate, l2;
  bool nesterov;
};

template <class T>
struct MomentumOp {
  static constexpr int kVec = 4;
  float* buffer;
  const float *gradient, *weight;  // weight: null without l2
  T* packed;                       // null: nothing is packed

  Cover cover_of(int64_t count) const { return cover<kVec>(count, buffer, gradient, weight, packed); }

  template <int N>
  __device__ void run(int64_t i, const Momentum& m) const {
    Vec<float, N> b = load<N>(buffer, i), g = load<N>(gradient, i);
    if (weight != nullptr) {
      const Vec<float, N> w = load<N>(weight, i);
#pragma unroll
      for (int k = 0; k < N; ++k) g[k] = __fadd_rn(g[k], __fmul_rn(m.l2, w[k]));
    }
    Vec<T, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const bool finite = fabsf(g[k]) <= FLT_MAX;
      const float moved = __fadd_rn(b[k], __fmul_rn(m.rate, __fsub_rn(g[k], b[k])));
      const float ahead = m.nesterov ? __fadd_rn(g[k], __fmul_rn(m.mu, __fsub_rn(moved, g[k]))) : moved;
      if (finite) b[k] = moved;
      put(out[k], finite ? ahead : nanf(""));
    }
    store(buffer, i, b);
    if (packed != nullptr) store(packed, i, out);
  }
};

struct Nothing {};

template <class T>
struct UpdateOp {
  static constexpr int kVec = 4;
  float* weight;
  const T* packed;
  float decay, alpha;

  Cover cover_of(int64_t count) const { return cover<kVec>(count, weight, packed); }

  template <int N>
  __device__ void run(int64_t i, Nothing) const {
    Vec<float, N> w = load<N>(weight, i);
    const Vec<T, N> o = load<N>(packed, i);
#pragma unroll
    for (int k = 0; k < N; ++k) w[k] = __fadd_rn(__fmul_rn(decay, w[k]), __fmul_rn(alpha, to_float(o[k])));
    store(weight, i, w);
  }
};

template <class To, class From>
struct CopyOp {
  static constexpr int kVec = 16 / static_cast<int>(std::min(sizeof(To), sizeof(From)));
  To* to;
  const From* from;

  Cover cover_of(int64_t count) const { return cover<kVec>(count, to, from); }

  template <int N>
  __device__ void run(int64_t i, Nothing) const {
    const Vec<From, N> in = load<N>(from, i);
    Vec<To, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if constexpr (std::is_same_v<To, From>) {
        out[k] = in[k];
      } else {
        put(out[k], to_float(in[k]));
      }
    }
    store(to, i, out);
  }
};

}  // namespace

void muon_momentum(ExecutionContext& context, const MuonMomentumArgs& a) {
  const Momentum common{a.mu, 1 - a.mu, a.l2, a.nesterov};
  with_payload(a.packed.dtype, [&]<class T>(T) {
    T* packed = a.packed.as<T>();
    for_segments<MomentumOp<T>>(context, "muon_momentum", a.segments, common, [&](const MomentumSegment& s) {
      return MomentumOp<T>{s.buffer, s.gradient, a.l2 == 0 ? nullptr : s.weight,
                           s.at < 0 ? nullptr : packed + s.at};
    });
  });
}

void muon_update(ExecutionContext& context, const MuonUpdateArgs& a) {
  with_payload(a.packed.dtype, [&]<class T>(T) {
    const T* packed = a.packed.as<T>();
    for_segments<UpdateOp<T>>(context, "muon_update", a.segments, Nothing{}, [&](const UpdateSegment& s) {
      return UpdateOp<T>{s.weight, packed + s.at, s.decay, s.alpha};
    });
  });
}

void copy_segments(ExecutionContext& context, const CopySegmentsArgs& a) {
  with_payload(a.to.dtype, [&]<class To>(To) {
    with_payload(a.from.dtype, [&]<class From>(From) {
      To* to = a.to.as<To>();
      const From* from = a.from.as<From>();
      for_segments<CopyOp<To, From>>(context, "copy_segments", a.segments, Nothing{},
                                     [&](const CopySegment& s) {
                                       return CopyOp<To, From>{to + s.to, from + s.from};
                                     });
    });
  });
}

}  // namespace sherd::cuda
