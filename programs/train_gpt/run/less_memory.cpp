#include "train_gpt/run/less_memory.h"

#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>

#include "train_gpt/run/forecast.h"

namespace train_gpt {

std::vector<MemoryFlag> memory_flags(const TrainConfig& config) {
  const bool bf16 = config.precision == sherd::DType::bf16,
             masters = bf16 && config.master != sherd::Master::bf16;
  std::vector<MemoryFlag> flags;
  const auto add = [&](bool possible, const char* text, bool same_bits,
                       std::function<void(TrainConfig&)> apply) {
    if (possible) flags.push_back({text, same_bits, std::move(apply)});
  };
  add(config.recompute == Recompute::none, "--recompute blocks", true,
      [](TrainConfig& c) { c.recompute = Recompute::blocks; });
  add(config.recompute != Recompute::offload, "--recompute offload", true,
      [](TrainConfig& c) { c.recompute = Recompute::offload; });
  add(config.offload == "none", "--offload state", true, [](TrainConfig& c) { c.offload = "state"; });
  add(masters && config.offload != "state,master", "--offload state,master", true,
      [](TrainConfig& c) { c.offload = "state,master"; });
  add(config.state_dtype != sherd::DType::bf16, "--state-dtype bf16", false,
      [](TrainConfig& c) { c.state_dtype = sherd::DType::bf16; });
  add(config.grad_dtype != sherd::DType::bf16, "--grad-dtype bf16", false,
      [](TrainConfig& c) { c.grad_dtype = sherd::DType::bf16; });
  add(config.ema > 0 && config.ema_dtype != sherd::DType::bf16, "--ema-dtype bf16", false,
      [](TrainConfig& c) { c.ema_dtype = sherd::DType::bf16; });
  add(masters && config.offload != "state,master", "--master bf16", false,
      [](TrainConfig& c) { c.master = sherd::Master::bf16; });
  return flags;
}

std::string savings_in_words(const TrainConfig& config, const sherd::RankContext& rank) {
  const ForecastOptions options{.device = dry_options(*rank.device)};
  const auto peak = [&](const TrainConfig& c) {
    return forecast(c, rank.world->rank(), options).run_peak_bytes;
  };
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::vector<std::string> words;
  try {
    const int64_t now = peak(config);
    for (const MemoryFlag& flag : memory_flags(config)) {
      TrainConfig other = config;
      flag.apply(other);
      if (const int64_t saved = now - peak(other); saved > 0)
        words.push_back(fmt::format("{} {:.1f} MiB", flag.text, mib(saved)));
    }
    if (words.empty()) return "";
    const bool needs_folder = config.device == sherd::DeviceKind::cpu && config.offload_folder.empty();
    return fmt::format("\nThe run is planned to take {:.1f} MiB. By itself would save: {}{}", mib(now),
                       fmt::join(words, ", "), needs_folder ? " (on the host: with --offload-folder)" : "");
  } catch (const sherd::Error&) {
    return "";
  }
}

}  // namespace train_gpt
