// Heads of multi-head latent attention, in the form that attention() takes. ops.h says what holds for all operations.
#pragma once

#include <algorithm>
#include <cstdint>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// Heads whose keys have a part without positions, of `nope` columns, and a part with rotary positions, of `rope` columns,
/// which all heads share (DeepSeek-AI, DeepSeek-V2, 2024, arXiv 2405.04434, section 2.1). Values have `value` columns.
struct LatentHeads {
  int64_t batch = 1, heads = 1;  // sequences of equal length, one after the other
  int64_t nope = 0, rope = 0, value = 0;
  int64_t first_position = 0;  // of the first row of each sequence
  /// Components 2i and 2i + 1 of a rotary part are a pair; otherwise i and i + rope / 2. Rotated pairs are at
  /// i and i + rope / 2 either way: scores do not depend on the order of components.
  bool interleaved = true;
  float rotation_scale = 1;  // of cosines and sines
  float query_scale = 1;     // of all of a query

  int64_t key() const { return nope + rope; }
  /// Columns of each head of q, k and v for attention(), which has one width for all.
  int64_t width() const { return std::max(key(), value); }
};

/// Row r of qkv [batch * seq, 3 * heads * width()], head by head, columns that are left over are 0:
///   q of head h: query_scale * [q[r, h, :nope], rotated q[r, h, nope:]]
///   k of head h: [kv[r, h, :nope], rotated k_rope[r]]
///   v of head h: kv[r, h, nope:]
/// with q [rows, heads, nope + rope], kv [rows, heads, nope + value], k_rope [rows, rope]. A pair (x1, x2) of component i
/// becomes rotation_scale * (x1 cos - x2 sin, x2 cos + x1 sin), angle position * inv_freq[i], an f32 product. Unpacking
/// reads the gradient of qkv and writes those of the others, k_rope's summed over heads in their order.
struct LatentArgs {
  LatentHeads heads{};
  int64_t rows = 0, seq = 0;
  Ref q{}, kv{}, k_rope{}, qkv{};   // f32 or bf16 alike
  const float* inv_freq = nullptr;  // [rope / 2]
};

inline Work work_of(const Device&, const LatentArgs& a) {
  const int64_t heads = a.rows * a.heads.heads;
  return {.bytes = bytes_of({a.q}, heads * a.heads.key()) +
                   bytes_of({a.kv}, heads * (a.heads.nope + a.heads.value)) +
                   bytes_of({a.qkv}, 3 * heads * a.heads.width())};
}

struct LatentKernels {
  static constexpr const char* kName = "latent";
  static const LatentKernels* reference();
  static const LatentKernels* cpu();
  static const LatentKernels* cuda();

  void (*pack_latent)(ExecutionContext&, const LatentArgs&);
  void (*unpack_latent)(ExecutionContext&, const LatentArgs&);
};

namespace ops {

/// Shapes as LatentArgs says, with seq = rows / batch. @throws ShapeMismatch; InvalidArgument for heads that have an odd
/// rotary part, or sizes that are not positive (nope may be 0).
void pack_latent(Stream& s, const Tensor& qkv, const Tensor& q, const Tensor& kv, const Tensor& k_rope,
                 const Tensor& inv_freq, const LatentHeads& heads);
/// Overwrites dq, dkv and dk_rope with the gradients that follow from dqkv.
void unpack_latent(Stream& s, const Tensor& dq, const Tensor& dkv, const Tensor& dk_rope, const Tensor& dqkv,
                   const Tensor& inv_freq, const LatentHeads& heads);

}  // namespace ops
}  // namespace sherd
