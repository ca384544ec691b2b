#include <sherd/kernels/muon/muon.h>

#include <cfloat>

#include <sherd/kernels/device/cuda/segments.h>
#include <sherd/kernels/rest/cuda_forms.h>

// Single fp32 operations in the reference's order.

namespace sherd::cuda {
namespace {

struct Momentum {
  float mu, rate, l2;
  bool nesterov;
  const int64_t* skip;
  const float* factor;

  __device__ bool nothing_to_do() const { return false; }  // messages are packed all the same
};

template <class T, class S>
struct MomentumOp {
  static constexpr int kVec = 4;
  static constexpr bool kDraws = S::kDraws;
  S buffer;
  ReadWeights weight;  // null without l2
  ReadWeights gradient;
  T* packed;  // null: nothing is packed
  KeptNoise<kDraws> noise;

  Cover cover_of(int64_t count) const {
    return cover<kVec>(count, buffer.bound(), gradient.whole_bound(), gradient.bound(), weight.whole_bound(),
                       weight.bound(), weight.low, packed);
  }

  template <int N>
  __device__ void run(int64_t i, const Momentum& m) const {
    Vec<float, N> b = buffer.template get<N>(i), g = gradient.template get<N>(i);
    const float factor = m.factor == nullptr ? 1.0f : *m.factor;
#pragma unroll
    for (int k = 0; k < N; ++k) g[k] = __fmul_rn(g[k], factor);
    if (weight.high != nullptr) {
      const Vec<float, N> w = weight.template get<N>(i);
#pragma unroll
      for (int k = 0; k < N; ++k) g[k] = __fadd_rn(g[k], __fmul_rn(m.l2, w[k]));
    }
    const bool moves = m.skip == nullptr || *m.skip == 0;
    Vec<T, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const bool finite = fabsf(g[k]) <= FLT_MAX;
      const float moved = __fadd_rn(b[k], __fmul_rn(m.rate, __fsub_rn(g[k], b[k])));
      const float ahead = m.nesterov ? __fadd_rn(g[k], __fmul_rn(m.mu, __fsub_rn(moved, g[k]))) : moved;
      if (finite && moves) b[k] = moved;
      put(out[k], finite ? ahead : nanf(""));
    }
    // A stored value rounds to itself with any noise.
    buffer.put(i, b, noise.template draw<N>(i), NoiseUse::first_state);
    if (packed != nullptr) store(packed, i, out);
  }
};

struct Update {
  const int64_t* skip;

  __device__ bool nothing_to_do() const { return skip != nullptr && *skip != 0; }
};

struct Nothing {
  __device__ bool nothing_to_do() const { return false; }
};

template <class T, class W, class Copy>
struct UpdateOp {
  static constexpr int kVec = 4;
  static constexpr bool kDraws = W::kDraws;
  W weight;
  const T* packed;
  float decay, alpha;
  Copy* copy;  // may be null
  KeptNoise<kDraws> noise;

  Cover cover_of(int64_t count) const {
    return cover<kVec>(count, weight.bound(), weight.low_bound(), packed, copy);
  }

  template <int N>
  __device__ void run(int64_t i, const Update&) const {
    Vec<float, N> w = weight.template get<N>(i);
    const Vec<T, N> o = load<N>(packed, i);
#pragma unroll
    for (int k = 0; k < N; ++k) w[k] = __fadd_rn(__fmul_rn(decay, w[k]), __fmul_rn(alpha, to_float(o[k])));
    weight.put(i, w, noise.template draw<N>(i), NoiseUse::weight);
    if (copy == nullptr) return;
    Vec<Copy, N> c;
#pragma unroll
    for (int k = 0; k < N; ++k) put(c[k], w[k]);
    store(copy, i, c);
  }
};

template <class To, class From>
struct CopyOp {
  static constexpr int kVec = 16 / static_cast<int>(std::min(sizeof(To), sizeof(From)));
  To* to;
  const From* from;

  Cover cover_of(int64_t count) const { return cover<kVec>(count, to, from); }

  template <int N>
  __device__ void run(int64_t i, const Nothing&) const {
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

struct FiniteCheck {
  const int64_t* skip;
  int32_t fine, found;

  __device__ bool nothing_to_do() const { return skip != nullptr && *skip != 0; }
};

template <class S>
struct CheckOp {
  static constexpr int kVec = 4;
  S values;
  int32_t* status;

  Cover cover_of(int64_t count) const { return cover<kVec>(count, values.bound()); }

  template <int N>
  __device__ void run(int64_t i, const FiniteCheck& c) const {
    const Vec<float, N> v = values.template get<N>(i);
    bool finite = true;
#pragma unroll
    for (int k = 0; k < N; ++k) finite = finite && fabsf(v[k]) <= FLT_MAX;
    // All threads write the same value.
    if (!finite) atomicCAS(status, c.fine, c.found);
  }
};

template <class S>
struct ClearOp {
  static constexpr int kVec = 4;
  S values;
  const int32_t* status;

  Cover cover_of(int64_t count) const { return cover<kVec>(count, values.bound()); }

  template <int N>
  __device__ void run(int64_t i, const FiniteCheck& c) const {
    if (*status == c.fine) return;
    Vec<float, N> zero;
#pragma unroll
    for (int k = 0; k < N; ++k) zero[k] = 0;
    values.put(i, zero, NoDraw{}, NoiseUse::weight);
  }
};

void muon_momentum(ExecutionContext& context, const MuonMomentumArgs& a) {
  const Momentum common{a.mu, 1 - a.mu, a.l2, a.nesterov, a.skip, a.factor};
  with_payload(a.packed.dtype, [&]<class T>(T) {
    T* packed = a.packed.as<T>();
    with_state(a.forms.state, [&](auto state) {
      using Op = MomentumOp<T, decltype(state(nullptr))>;
      for_segments<Op>(context, "muon_momentum", a.segments, common, [&](const MomentumSegment& s) {
        ReadWeights weight;
        if (a.l2 != 0) weight = {a.forms.master, const_cast<void*>(s.weight), const_cast<uint16_t*>(s.low)};
        return Op{state(s.buffer), weight, read_gradients(a.forms, s.gradient),
                  s.at < 0 ? nullptr : packed + s.at, KeptNoise<Op::kDraws>{s.noise}};
      });
    });
  });
}

void muon_update(ExecutionContext& context, const MuonUpdateArgs& a) {
  with_payload(a.packed.dtype, [&]<class T>(T) {
    const T* packed = a.packed.as<T>();
    const auto run = [&](auto weights, auto copy) {
      using Op = UpdateOp<T, decltype(weights(nullptr, nullptr)), decltype(copy)>;
      for_segments<Op>(context, "muon_update", a.segments, Update{a.skip}, [&](const UpdateSegment& s) {
        return Op{weights(s.weight, s.low),
                  packed + s.at,
                  s.decay,
                  s.alpha,
                  static_cast<decltype(copy)*>(s.copy),
                  KeptNoise<Op::kDraws>{s.noise}};
      });
    };
    with_weights(a.forms.master, [&](auto weights) {
      if constexpr (std::is_same_v<decltype(weights(nullptr, nullptr)), InF32>) {
        with_payload(a.copy_dtype, [&](auto copy) { run(weights, copy); });
      } else {
        run(weights, float{});
      }
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

void check_finite(ExecutionContext& context, const CheckFiniteArgs& a) {
  const FiniteCheck common{a.skip, static_cast<int32_t>(MatrixStatus::fine), static_cast<int32_t>(a.found)};
  with_state(a.dtype, [&](auto values) {
    using S = decltype(values(nullptr));
    for_segments<CheckOp<S>>(context, "check_finite", a.segments, common, [&](const CheckedSegment& s) {
      return CheckOp<S>{values(s.values), s.status};
    });
    if (!a.clears) return;
    for_segments<ClearOp<S>>(context, "check_finite", a.segments, common, [&](const CheckedSegment& s) {
      return ClearOp<S>{values(s.values), s.status};
    });
  });
}

}  // namespace
}  // namespace sherd::cuda

namespace sherd {

const MuonKernels* MuonKernels::cuda() {
  static constexpr MuonKernels table{
      .muon_momentum = cuda::muon_momentum,
      .muon_update = cuda::muon_update,
      .copy_segments = cuda::copy_segments,
      .check_finite = cuda::check_finite,
  };
  return &table;
}

}  // namespace sherd
