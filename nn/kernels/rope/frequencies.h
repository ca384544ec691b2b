// Frequencies of rotary positions, and how they are stretched to longer sequences.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

/// `rope_type` of Hugging Face's config.json; to_string() returns its values, "default" for `plain`.
enum class RopeType { plain, linear, dynamic, llama3, yarn, longrope };
std::string_view to_string(RopeType type);

/// Stretching of angles to sequences longer than those of pretraining. Members are keys of Hugging Face's
/// config.json, and formulas those of transformers. Frequencies without scaling are f[i] = theta^(-2i /
/// columns).
///
/// | type | frequencies |
/// |---|---|
/// | linear | f / factor |
/// | dynamic | f, as sequences within max_position_embeddings have it; only longer ones are stretched |
/// | llama3 | f / factor of wavelengths above original / low_freq_factor, f below original / high_freq_factor, between them a mixture |
/// | yarn | f of components that turn beta_fast times or more within `original`, f / factor below beta_slow turns, between them a mixture (Peng et al., 2023, arXiv 2309.00071) |
/// | longrope | f[i] / short_factor[i], in sequences of more than `original` positions f[i] / long_factor[i] (Ding et al., 2024, arXiv 2402.13753) |
struct RopeScaling {
  RopeType type = RopeType::plain;
  double factor = 1;                                 // of all types
  int64_t original_max_position_embeddings = 0;      // llama3, yarn, longrope: `original` above
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  double mscale = 0, mscale_all_dim = 0;             // yarn
  double attention_factor = 0;  // yarn, longrope: rotation_scale(); 0: as its formula says
  bool truncate = true;         // yarn: the components between which frequencies change are rounded outwards
  std::vector<double> short_factor{}, long_factor{};  // longrope: one for each frequency

  bool operator==(const RopeScaling&) const = default;

  /// Returns the factor of cosines and sines. yarn: mscale(factor, mscale) / mscale(factor, mscale_all_dim) if both are
  /// positive, else mscale(factor, 1), with mscale(s, m) = 0.1 m ln(s) + 1. longrope: sqrt(1 + ln(factor) / ln(original)).
  double rotation_scale() const;
  /// Returns the factor of scores; of yarn mscale(factor, mscale_all_dim)^2.
  double score_scale() const;
  /// Returns whether sequences of so many positions have the frequencies of long ones (longrope).
  bool is_long(int64_t positions) const {
    return type == RopeType::longrope && positions > original_max_position_embeddings;
  }
};

namespace ops {

/// Returns the frequencies of heads of which so many columns are rotated, in f32 step by step as Hugging Face computes
/// them: what inv_freq of rope() holds.
/// @param positions of the sequences, for RopeScaling::is_long()
/// @throws InvalidArgument unless columns is even and positive and theta is positive, and for a rope_problem().
std::vector<float> rope_frequencies(int64_t columns, double theta = 10000, const RopeScaling& scaling = {},
                                    int64_t positions = 0);

/// Returns what is wrong with settings that make no frequencies, with their values; "" where nothing is.
std::string rope_problem(int64_t columns, double theta, const RopeScaling& scaling);

}  // namespace ops
}  // namespace sherd
