#include "train_gpt/run/less_memory.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include <sherd/base/error.h>

#include "train_gpt/run/search.h"

namespace train_gpt {

std::string remedies_in_words(const TrainConfig& config, const sherd::RankContext& rank) {
  try {
    SearchOptions options = search_options(rank);
    const int64_t limit = config.memory_limit > 0 ? config.memory_limit : options.hardware.memory_bytes;
    options.forecast.device.keep_within = sherd::planned_limit(limit);
    const sherd::RankForecast now = forecast(config, rank.world->rank(), options.forecast).rank;
    const int64_t planned = now.peak_bytes + now.by_class.at("slack");
    options.most_work = 2'000'000;
    const std::vector<Candidate> found =
        remedies(config, options, {.memory_bytes = std::min(limit, now.peak_bytes / 20 * 19)}, 3);
    if (found.empty()) return "";
    std::string text = fmt::format("\nThe run is planned to take {} and {:.2f} ms a step.",
                                   size_text(planned), play(now.record, options.hardware).total * 1e3);
    for (const Candidate& c : found) text += "\n  " + in_words(c);
    return text;
  } catch (const sherd::Error&) {
    return "";
  }
}

}  // namespace train_gpt
