#include <sherd/nn/kernels/rope/rope.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <sherd/kernels/device/detail/door.h>

namespace sherd {
namespace {

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace

double YarnScaling::rotation_scale() const {
  if (attention_factor > 0) return attention_factor;
  if (mscale > 0 && mscale_all_dim > 0)
    return yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim);
  return yarn_mscale(factor, 1);
}

double YarnScaling::score_scale() const {
  const double of_one = mscale_all_dim > 0 ? yarn_mscale(factor, mscale_all_dim) : 1.0;
  return of_one * of_one;
}

}  // namespace sherd

namespace sherd::ops {

using namespace door;

void rope(Stream& s, const Tensor& y, const Tensor& x, const Tensor& inv_freq, int64_t batch, int64_t heads,
          int64_t first_position, bool inverse, int64_t head_dim, float scale) {
  Check check("rope");
  check.dims("x", x, 2).dims("inv_freq", inv_freq, 1);
  check.dtype("x", x, kActivations).dtype("y", y, x.dtype()).dtype("inv_freq", inv_freq, DType::f32);
  require(batch > 0 && heads > 0, fmt::format("rope: batch {} and heads {} must be positive", batch, heads));
  require(first_position >= 0, fmt::format("rope: first_position {} must not be negative", first_position));
  const int64_t rotary = 2 * inv_freq.size(0);
  if (head_dim == 0) head_dim = rotary;
  require(head_dim >= rotary,
          fmt::format("rope: heads of {} columns, of which {} are rotated; they have at least as many",
                      head_dim, rotary));
  check.shape("y", y, x.shape());
  check.that(x.size(0) % batch == 0 && x.size(1) >= heads * head_dim,
             fmt::format("x is {}, must be [{} x seq, at least {} heads x {}]", to_string(x.shape()), batch,
                         heads, head_dim));
  check.done();
  if (y.raw() != x.raw()) require_distinct("rope", y, x);
  const RopeArgs a{.batch = batch,
                   .seq = x.size(0) / batch,
                   .heads = heads,
                   .head_dim = head_dim,
                   .rotary = rotary,
                   .columns = x.size(1),
                   .first_position = first_position,
                   .inverse = inverse,
                   .scale = scale,
                   .x = ref(x),
                   .y = ref(y),
                   .inv_freq = inv_freq.data<float>()};
  queue(s, "rope", kernels<RopeKernels>(s).rope, a);
}

std::vector<float> rope_frequencies(int64_t head_dim, double theta) {
  require(head_dim > 0 && head_dim % 2 == 0 && theta > 0 && std::isfinite(theta),
          fmt::format("rope_frequencies: head_dim {} must be even and positive, theta {} positive", head_dim,
                      theta));
  std::vector<float> frequencies;
  for (int64_t i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    const auto power = static_cast<float>(std::pow(static_cast<double>(static_cast<float>(theta)), exponent));
    frequencies.push_back(1.0f / power);
  }
  return frequencies;
}

std::vector<float> rope_frequencies(int64_t head_dim, double theta, const Llama3Scaling& scaling) {
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  const auto length = static_cast<double>(scaling.original_max_position_embeddings);
  require(
      scaling.factor > 0 && low > 0 && low < high && length > 0,
      fmt::format("rope_frequencies: llama3 scaling with factor {}, low_freq_factor {}, high_freq_factor {}, "
                  "original_max_position_embeddings {}; all must be positive, and low below high",
                  scaling.factor, low, high, length));
  std::vector<float> frequencies = rope_frequencies(head_dim, theta);
  for (float& f : frequencies) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / f;
    if (wavelength > length / low) {
      f /= static_cast<float>(scaling.factor);
    } else if (wavelength >= length / high) {
      const float smooth = (static_cast<float>(length) / wavelength - static_cast<float>(low)) /
                           static_cast<float>(high - low);
      f = (1 - smooth) * f / static_cast<float>(scaling.factor) + smooth * f;
    }
  }
  return frequencies;
}

std::vector<float> yarn_frequencies(int64_t head_dim, double theta, const YarnScaling& y) {
  const auto length = static_cast<double>(y.original_max_position_embeddings);
  require(
      y.factor >= 1 && y.beta_slow > 0 && y.beta_slow <= y.beta_fast && length > 0 && theta > 1,
      fmt::format(
          "yarn_frequencies: scaling with factor {}, beta_fast {}, beta_slow {}, "
          "original_max_position_embeddings {}, theta {}; factor must be at least 1, beta_slow positive and "
          "at most beta_fast, theta above 1",
          y.factor, y.beta_fast, y.beta_slow, length, theta));
  std::vector<float> frequencies = rope_frequencies(head_dim, theta);
  // The component that turns so many times within the original length.
  const auto component = [&](double turns) {
    return static_cast<double>(head_dim) * std::log(length / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  const double fast = component(y.beta_fast), slow = component(y.beta_slow);
  const double low = std::max(y.truncate ? std::floor(fast) : fast, 0.0);
  double high = std::min(y.truncate ? std::ceil(slow) : slow, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = (static_cast<double>(i) - low) / (high - low);
    const float stretched = static_cast<float>(std::clamp(ramp, 0.0, 1.0));
    const float f = frequencies[i];
    frequencies[i] = f / static_cast<float>(y.factor) * stretched + f * (1 - stretched);
  }
  return frequencies;
}

}  // namespace sherd::ops
