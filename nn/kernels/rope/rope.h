// Rotary position embedding. ops.h says what holds for all operations.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/nn/kernels/rope/frequencies.h>

namespace sherd {

/// Each of the first `heads` heads of a row begins with `rotary` columns [x1, x2], two halves, which become [x1 cos - x2
/// sin, x2 cos + x1 sin] with angle position * inv_freq[i] for component i of a half, an f32 product; a head's other
/// columns, and the columns behind the heads, are copied. x and y are [batch*seq, columns]; row t of each of the `batch` sequences has
/// position first_position + t. With `inverse` the angles are negative, which is the gradient: dx = rope(dy,
/// inverse). (Su et al., RoFormer, 2021, with the halves of a head as pairs, as in Llama on Hugging Face.)
struct RopeArgs {
  int64_t batch = 0, seq = 0, heads = 0, head_dim = 0, rotary = 0, columns = 0, first_position = 0;
  bool inverse = false;
  float scale = 1;  // of cosines and sines
  Ref x{}, y{};
  const float* inv_freq = nullptr;  // [rotary / 2]
};

inline Work work_of(const Device&, const RopeArgs& a) {
  return {.bytes = bytes_of({a.x, a.y}, a.batch * a.seq * a.heads * a.head_dim)};
}

struct RopeKernels {
  static constexpr const char* kName = "rope";
  static const RopeKernels* reference();
  static const RopeKernels* cpu();
  static const RopeKernels* cuda();

  void (*rope)(ExecutionContext&, const RopeArgs&);
};

namespace ops {

/// Twice the length of inv_freq, f32, columns of each head are rotated; seq follows from the shapes. `heads` counts from
/// the first column: heads + kv_heads of a packed qkv turns q and k and leaves v. y may be x.
/// @param head_dim columns of a head; 0: those that are rotated
/// @param scale of cosines and sines; see RopeScaling::rotation_scale()
void rope(Stream& s, const Tensor& y, const Tensor& x, const Tensor& inv_freq, int64_t batch, int64_t heads,
          int64_t first_position = 0, bool inverse = false, int64_t head_dim = 0, float scale = 1);

}  // namespace ops
}  // namespace sherd
