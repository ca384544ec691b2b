#include <sherd/nn/kernels/rope/frequencies.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include <sherd/base/enum_table.h>
#include <sherd/base/error.h>

namespace sherd {
namespace {

struct RopeShape {
  int64_t columns, positions;
  double theta;
};

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double original_of(const RopeScaling& s) { return static_cast<double>(s.original_max_position_embeddings); }

void keep_angles(std::vector<float>&, const RopeScaling&, const RopeShape&) {}

void divide_angles(std::vector<float>& frequencies, const RopeScaling& s, const RopeShape&) {
  for (float& f : frequencies) f /= static_cast<float>(s.factor);
}

void stretch_waves(std::vector<float>& frequencies, const RopeScaling& s, const RopeShape&) {
  const double low = s.low_freq_factor, high = s.high_freq_factor, length = original_of(s);
  for (float& f : frequencies) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / f;
    if (wavelength > length / low) {
      f /= static_cast<float>(s.factor);
    } else if (wavelength >= length / high) {
      const float smooth = (static_cast<float>(length) / wavelength - static_cast<float>(low)) /
                           static_cast<float>(high - low);
      f = (1 - smooth) * f / static_cast<float>(s.factor) + smooth * f;
    }
  }
}

void stretch_turns(std::vector<float>& frequencies, const RopeScaling& s, const RopeShape& shape) {
  // The component that turns so many times within the original length.
  const auto component = [&](double turns) {
    return static_cast<double>(shape.columns) * std::log(original_of(s) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(shape.theta));
  };
  const double fast = component(s.beta_fast), slow = component(s.beta_slow);
  const double low = std::max(s.truncate ? std::floor(fast) : fast, 0.0);
  double high = std::min(s.truncate ? std::ceil(slow) : slow, static_cast<double>(shape.columns - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = (static_cast<double>(i) - low) / (high - low);
    const float stretched = static_cast<float>(std::clamp(ramp, 0.0, 1.0));
    const float f = frequencies[i];
    frequencies[i] = f / static_cast<float>(s.factor) * stretched + f * (1 - stretched);
  }
}

void divide_by_lists(std::vector<float>& frequencies, const RopeScaling& s, const RopeShape& shape) {
  const std::vector<double>& factors = s.is_long(shape.positions) ? s.long_factor : s.short_factor;
  for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= static_cast<float>(factors[i]);
}

bool good_factor(const RopeScaling& s, const RopeShape&) { return s.factor > 0 && std::isfinite(s.factor); }

bool good_waves(const RopeScaling& s, const RopeShape& shape) {
  return good_factor(s, shape) && s.low_freq_factor > 0 && s.low_freq_factor < s.high_freq_factor &&
         s.original_max_position_embeddings > 0;
}

bool good_turns(const RopeScaling& s, const RopeShape& shape) {
  return s.factor >= 1 && s.beta_slow > 0 && s.beta_slow <= s.beta_fast &&
         s.original_max_position_embeddings > 0 && shape.theta > 1;
}

bool good_lists(const RopeScaling& s, const RopeShape& shape) {
  const auto good = [&](const std::vector<double>& factors) {
    return std::ssize(factors) == shape.columns / 2 &&
           std::all_of(factors.begin(), factors.end(), [](double f) { return f > 0 && std::isfinite(f); });
  };
  return good_factor(s, shape) && s.original_max_position_embeddings > 1 && good(s.short_factor) &&
         good(s.long_factor);
}

/// Formula of a type and its required options.
struct RopeRow {
  void (*stretch)(std::vector<float>&, const RopeScaling&, const RopeShape&);
  bool (*good)(const RopeScaling&, const RopeShape&);
  const char* demand;
};
constexpr const char* kPositiveFactor = "factor must be positive";
constexpr RopeRow kRopeRows[] = {
    {keep_angles, [](const RopeScaling&, const RopeShape&) { return true; }, ""},
    {divide_angles, good_factor, kPositiveFactor},
    {keep_angles, good_factor, kPositiveFactor},
    {stretch_waves, good_waves,
     "factor, low_freq_factor and the original length must be positive, high_freq_factor larger than "
     "low_freq_factor"},
    {stretch_turns, good_turns,
     "factor must be at least 1, beta_slow positive and at most beta_fast, the original length positive, "
     "theta above 1"},
    {divide_by_lists, good_lists,
     "factor must be positive, the original length above 1, short_factor and long_factor positive, one for "
     "every two rotated columns"}};

}  // namespace

std::string_view to_string(RopeType type) {
  constexpr EnumTable<RopeType, 6> kTypes{"default", "linear", "dynamic", "llama3", "yarn", "longrope"};
  return kTypes.name(type);
}

double RopeScaling::rotation_scale() const {
  const bool yarn = type == RopeType::yarn;
  if (!yarn && type != RopeType::longrope) return 1;
  if (attention_factor > 0) return attention_factor;
  if (!yarn) return factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original_of(*this)));
  if (mscale > 0 && mscale_all_dim > 0)
    return yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim);
  return yarn_mscale(factor, 1);
}

double RopeScaling::score_scale() const {
  const double of_one =
      type == RopeType::yarn && mscale_all_dim > 0 ? yarn_mscale(factor, mscale_all_dim) : 1.0;
  return of_one * of_one;
}

}  // namespace sherd

namespace sherd::ops {

std::string rope_problem(int64_t columns, double theta, const RopeScaling& s) {
  const RopeRow& row = kRopeRows[static_cast<size_t>(s.type)];
  if (row.good(s, {columns, 0, theta})) return "";
  return fmt::format(
      "rotary scaling \"{}\" of {} columns with factor {}, original_max_position_embeddings {}, theta {}, "
      "low_freq_factor {}, high_freq_factor {}, beta_fast {}, beta_slow {}, {} short and {} long factors: {}",
      to_string(s.type), columns, s.factor, s.original_max_position_embeddings, theta, s.low_freq_factor,
      s.high_freq_factor, s.beta_fast, s.beta_slow, s.short_factor.size(), s.long_factor.size(), row.demand);
}

std::vector<float> rope_frequencies(int64_t columns, double theta, const RopeScaling& scaling,
                                    int64_t positions) {
  if (columns <= 0 || columns % 2 != 0 || !(theta > 0) || !std::isfinite(theta))
    throw InvalidArgument(fmt::format(
        "rope_frequencies: columns {} must be even and positive, theta {} positive", columns, theta));
  if (const std::string problem = rope_problem(columns, theta, scaling); !problem.empty())
    throw InvalidArgument("rope_frequencies: " + problem);
  std::vector<float> frequencies;
  for (int64_t i = 0; i < columns; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(columns);
    const auto power = static_cast<float>(std::pow(static_cast<double>(static_cast<float>(theta)), exponent));
    frequencies.push_back(1.0f / power);
  }
  kRopeRows[static_cast<size_t>(scaling.type)].stretch(frequencies, scaling, {columns, positions, theta});
  return frequencies;
}

}  // namespace sherd::ops
