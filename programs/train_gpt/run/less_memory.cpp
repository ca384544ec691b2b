#include "train_gpt/run/less_memory.h"

#include <functional>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>

#include "train_gpt/run/forecast.h"

namespace train_gpt {

std::string savings_in_words(const TrainConfig& config, const sherd::RankContext& rank) {
  const ForecastOptions options{.device = dry_options(*rank.device)};
  const auto peak = [&](const TrainConfig& c) {
    return forecast(c, rank.world->rank(), options).run_peak_bytes;
  };
  const bool masters = config.precision == sherd::DType::bf16;
  const std::vector<std::tuple<const char*, bool, std::function<void(TrainConfig&)>>> flags = {
      {"--offload state", true, [](TrainConfig& c) { c.offload = "state"; }},
      {"--offload state,master", masters && config.master != sherd::Master::bf16,
       [](TrainConfig& c) { c.offload = "state,master"; }},
      {"--master bf16", masters, [](TrainConfig& c) { c.master = sherd::Master::bf16; }},
      {"--state-dtype bf16", true, [](TrainConfig& c) { c.state_dtype = sherd::DType::bf16; }},
      {"--recompute blocks", true, [](TrainConfig& c) { c.recompute = Recompute::blocks; }}};
  std::vector<std::string> words;
  try {
    const int64_t now = peak(config);
    for (const auto& [flag, possible, apply] : flags) {
      if (!possible) continue;
      TrainConfig other = config;
      apply(other);
      if (const int64_t saved = now - peak(other); saved > 0)
        words.push_back(fmt::format("{} {:.1f} MiB", flag, static_cast<double>(saved) / (1 << 20)));
    }
    if (words.empty()) return "";
    return fmt::format("The plan is {:.1f} MiB; alone would save: {}.", static_cast<double>(now) / (1 << 20),
                       fmt::join(words, ", "));
  } catch (const sherd::Error&) {
    return "";
  }
}

}  // namespace train_gpt
