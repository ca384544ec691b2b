// Rotary position embedding. ops.h says what holds for all operations.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

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

/// How Llama 3.1 and later stretch the angles to longer sequences: `rope_type` "llama3" of Hugging Face's
/// config.json, whose names these are. Wavelengths above original_max_position_embeddings / low_freq_factor
/// become `factor` times longer, those below original_max_position_embeddings / high_freq_factor stay, and
/// between them frequencies go from one to the other.
struct Llama3Scaling {
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
};

/// How YaRN stretches the angles (Peng et al., 2023, arXiv 2309.00071): `rope_type` "yarn" of Hugging Face's config.json,
/// whose names these are. Components that turn more than beta_fast times within original_max_position_embeddings keep
/// their frequency, those below beta_slow turns get 1 / factor of it, and between them it goes from one to the other.
struct YarnScaling {
  double factor = 40, beta_fast = 32, beta_slow = 1;
  /// Of cosines and sines: mscale(factor, mscale) / mscale(factor, mscale_all_dim) if both are positive, else
  /// mscale(factor, 1); mscale(s, m) = 0.1 m ln(s) + 1. Scores are multiplied by mscale(factor, mscale_all_dim)^2.
  double mscale = 0, mscale_all_dim = 0;
  /// Factor of cosines and sines that takes the place of the one above; 0: that one.
  double attention_factor = 0;
  /// Whether the components between which frequencies change are rounded outwards to whole ones.
  bool truncate = true;
  int64_t original_max_position_embeddings = 4096;

  /// The factor of cosines and sines.
  double rotation_scale() const;
  /// The factor of scores.
  double score_scale() const;
};

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
/// @param scale of cosines and sines; see YarnScaling::rotation_scale()
void rope(Stream& s, const Tensor& y, const Tensor& x, const Tensor& inv_freq, int64_t batch, int64_t heads,
          int64_t first_position = 0, bool inverse = false, int64_t head_dim = 0, float scale = 1);

/// theta^(-2i / head_dim) for i below head_dim / 2, in f32 step by step as Hugging Face computes it: what
/// inv_freq holds. @throws InvalidArgument unless head_dim is even and positive, and theta is positive.
std::vector<float> rope_frequencies(int64_t head_dim, double theta = 10000);
/// The same, scaled. @throws InvalidArgument unless factors are positive and low_freq_factor <
/// high_freq_factor.
std::vector<float> rope_frequencies(int64_t head_dim, double theta, const Llama3Scaling& scaling);
/// The same, scaled by YaRN. @throws InvalidArgument unless factor >= 1, 0 < beta_slow <= beta_fast and theta > 1.
std::vector<float> yarn_frequencies(int64_t head_dim, double theta, const YarnScaling& scaling);

}  // namespace ops
}  // namespace sherd
