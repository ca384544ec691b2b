#include <sherd/optim/schedule.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include <sherd/base/enum_table.h>

namespace sherd {
namespace {

constexpr EnumTable<RateDecay, 4> kRateDecays{"constant", "cosine", "linear", "wsd"};

// Returns the completed fraction of steps [begin, schedule.steps]: 0 to 1, and 1 after the last step.
double progress_of(const Schedule& s, int64_t begin, int64_t step) {
  return static_cast<double>(std::clamp(step, begin, s.steps) - begin) / static_cast<double>(s.steps - begin);
}

}  // namespace

const char* name_of(RateDecay d) { return kRateDecays.name(d); }
RateDecay parse_rate_decay(std::string_view name) { return kRateDecays.parse("learning rate decay", name); }

std::vector<std::string> problems_of(const Schedule& s) {
  std::vector<std::string> wrong;
  if (!(s.lr >= 0 && std::isfinite(s.lr)))
    wrong.push_back(fmt::format("learning rate {} must be finite and not negative", s.lr));
  for (const auto& [what, steps] :
       {std::pair("warmup", s.warmup), {"steps", s.steps}, {"decay_steps", s.decay_steps}})
    if (steps < 0) wrong.push_back(fmt::format("{} {} must not be negative", what, steps));
  if (!(s.least >= 0 && s.least <= 1)) wrong.push_back(fmt::format("least {} must lie in [0, 1]", s.least));
  if (s.decay == RateDecay::wsd && s.decay_steps > s.steps - s.warmup)
    wrong.push_back(fmt::format("decay_steps {} must fit into the {} steps after warm-up", s.decay_steps,
                                s.steps - s.warmup));
  return wrong;
}

double learning_rate(const Schedule& s, int64_t step) {
  if (step < s.warmup) return s.lr * static_cast<double>(step + 1) / static_cast<double>(s.warmup);
  const int64_t begin = s.decay == RateDecay::wsd ? std::max(s.warmup, s.steps - s.decay_steps) : s.warmup;
  if (s.decay == RateDecay::constant || s.steps <= begin) return s.lr;
  const double progress = progress_of(s, begin, step);
  if (s.decay == RateDecay::cosine)
    return s.lr * (s.least + (1 - s.least) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
  return s.lr * (1 - (1 - s.least) * progress);
}

}  // namespace sherd
