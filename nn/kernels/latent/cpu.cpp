#include <sherd/nn/kernels/latent/latent.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/parallel.h>

namespace sherd::cpu {
namespace {

/// Cosines and sines of one row, for all of its heads.
class RowTurns {
 public:
  explicit RowTurns(const LatentArgs& a)
      : a_(a), cos_(static_cast<size_t>(a.heads.rope / 2)), sin_(cos_.size()) {}
  void at(int64_t row) {
    for (size_t i = 0; i < cos_.size(); ++i) {
      const float angle = static_cast<float>(a_.heads.first_position + row % a_.seq) * a_.inv_freq[i];
      cos_[i] = a_.heads.rotation_scale * std::cos(angle);
      sin_[i] = a_.heads.rotation_scale * std::sin(angle);
    }
  }
  /// Writes `scale` times the rotated x to y, where a pair is at i and i + rope / 2.
  template <class T>
  void forward(T* y, const T* x, float scale) const {
    const auto half = static_cast<int64_t>(cos_.size());
    for (int64_t i = 0; i < half; ++i) {
      const auto [first, second] = places(i);
      const float x1 = float(x[first]), x2 = float(x[second]);
      store(y[i], scale * (x1 * cos_[size_t(i)] - x2 * sin_[size_t(i)]));
      store(y[i + half], scale * (x2 * cos_[size_t(i)] + x1 * sin_[size_t(i)]));
    }
  }
  /// Writes the gradient of x that follows from y's.
  template <class T, class D>
  void backward(T* dx, const D* dy, float scale) const {
    const auto half = static_cast<int64_t>(cos_.size());
    for (int64_t i = 0; i < half; ++i) {
      const auto [first, second] = places(i);
      const float d1 = float(dy[i]), d2 = float(dy[i + half]);
      store(dx[first], scale * (d1 * cos_[size_t(i)] + d2 * sin_[size_t(i)]));
      store(dx[second], scale * (d2 * cos_[size_t(i)] - d1 * sin_[size_t(i)]));
    }
  }

 private:
  struct Places {
    int64_t first, second;
  };
  Places places(int64_t i) const {
    return a_.heads.interleaved ? Places{2 * i, 2 * i + 1} : Places{i, i + a_.heads.rope / 2};
  }

  const LatentArgs& a_;
  std::vector<float> cos_, sin_;
};

int64_t latent_grain(const LatentHeads& h) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, 3 * h.heads * h.width()));
}

template <class T>
void scaled_columns(T* y, const T* x, int64_t count, float scale) {
#pragma omp simd
  for (int64_t c = 0; c < count; ++c) store(y[c], scale * float(x[c]));
}

template <class T>
void pack_latent_rows(const LatentArgs& a, int64_t begin, int64_t end) {
  const LatentHeads& h = a.heads;
  const int64_t key = h.key(), width = h.width(), in_kv = h.nope + h.value;
  RowTurns turns(a);
  for (int64_t r = begin; r < end; ++r) {
    turns.at(r);
    const T *q = a.q.as<T>() + r * h.heads * key, *kv = a.kv.as<T>() + r * h.heads * in_kv;
    const T* const shared = a.k_rope.as<T>() + r * h.rope;
    T* to_q = a.qkv.as<T>() + 3 * r * h.heads * width;
    T *to_k = to_q + h.heads * width, *to_v = to_k + h.heads * width;
    T* const first = to_k + h.nope;  // of the rotated shared part; copied to the other heads
    for (int64_t n = 0; n < h.heads; ++n) {
      scaled_columns(to_q, q, h.nope, h.query_scale);
      turns.forward(to_q + h.nope, q + h.nope, h.query_scale);
      std::copy_n(kv, h.nope, to_k);
      n == 0 ? turns.forward(first, shared, 1.0f) : void(std::copy_n(first, h.rope, to_k + h.nope));
      std::copy_n(kv + h.nope, h.value, to_v);
      std::fill(to_q + key, to_q + width, T{});
      std::fill(to_k + key, to_k + width, T{});
      std::fill(to_v + h.value, to_v + width, T{});
      q += key, kv += in_kv, to_q += width, to_k += width, to_v += width;
    }
  }
}

template <class T>
void unpack_latent_rows(const LatentArgs& a, int64_t begin, int64_t end) {
  const LatentHeads& h = a.heads;
  const int64_t key = h.key(), width = h.width(), in_kv = h.nope + h.value;
  RowTurns turns(a);
  std::vector<float> shared(static_cast<size_t>(h.rope));
  for (int64_t r = begin; r < end; ++r) {
    turns.at(r);
    T *dq = a.q.as<T>() + r * h.heads * key, *dkv = a.kv.as<T>() + r * h.heads * in_kv;
    const T* of_q = a.qkv.as<T>() + 3 * r * h.heads * width;
    const T *of_k = of_q + h.heads * width, *of_v = of_k + h.heads * width;
    std::fill(shared.begin(), shared.end(), 0.0f);
    for (int64_t n = 0; n < h.heads; ++n) {
      scaled_columns(dq, of_q, h.nope, h.query_scale);
      turns.backward(dq + h.nope, of_q + h.nope, h.query_scale);
      std::copy_n(of_k, h.nope, dkv);
      std::copy_n(of_v, h.value, dkv + h.nope);
      for (int64_t c = 0; c < h.rope; ++c) shared[size_t(c)] += float(of_k[h.nope + c]);
      dq += key, dkv += in_kv, of_q += width, of_k += width, of_v += width;
    }
    turns.backward(a.k_rope.as<T>() + r * h.rope, shared.data(), 1.0f);
  }
}

void pack_latent(ExecutionContext& ctx, const LatentArgs& a) {
  with_activation(a.q.dtype, [&](auto type) {
    parallel_for(ctx, a.rows, latent_grain(a.heads),
                 [&](int64_t begin, int64_t end) { pack_latent_rows<decltype(type)>(a, begin, end); });
  });
}

void unpack_latent(ExecutionContext& ctx, const LatentArgs& a) {
  with_activation(a.q.dtype, [&](auto type) {
    parallel_for(ctx, a.rows, latent_grain(a.heads),
                 [&](int64_t begin, int64_t end) { unpack_latent_rows<decltype(type)>(a, begin, end); });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const LatentKernels* LatentKernels::cpu() {
  static constexpr LatentKernels table{.pack_latent = cpu::pack_latent, .unpack_latent = cpu::unpack_latent};
  return &table;
}

}  // namespace sherd
