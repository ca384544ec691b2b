#include "train_gpt/run/strategy_choice.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>

#include "train_gpt/run/same_flags.h"
#include "train_gpt/settings/settings.h"

namespace train_gpt {
namespace {

constexpr sherd::Strategy kBase = sherd::Strategy::optim_grads_params;
/// Operations in dry runs, at most: some ten seconds.
constexpr int64_t kMostWork = 2'000'000;

std::string flags_of(const TrainConfig& config, const TrainConfig& given) {
  return fmt::format("{}",
                     fmt::join(changed_flags(config, given, [](std::string_view) { return true; }), " "));
}

}  // namespace

StrategyChoice choose_strategy(const TrainConfig& given, SearchOptions options) {
  TrainConfig base = given;
  base.strategy = kBase;
  base.chosen.clear();
  base.hardware.clear();
  Constraints constraints{.fixed = {kSearched.begin(), kSearched.end()},
                          .keep_bits = true,
                          .names_no_folder = true,
                          .memory_bytes = given.memory_limit};
  for (const std::string& name : given.chosen) constraints.fixed.erase(name);
  const int64_t limit = given.memory_limit > 0 ? given.memory_limit : options.hardware.memory_bytes;
  options.most_work = kMostWork;
  const SearchResult found = Search(base, options).run(constraints);
  if (!found.fits()) {
    std::string text = fmt::format("--strategy auto: no run fits in {} of a rank", size_text(limit));
    if (!found.candidates.empty())
      text += fmt::format("; the nearest takes {}, with {}", size_text(found.candidates.front().bytes),
                          flags_of(found.candidates.front().config, given));
    for (const Candidate& c : remedies(base, options, {.memory_bytes = limit}, 3))
      text += "\n  " + in_words(c);
    throw sherd::OutOfMemory(text);
  }
  const Candidate& best = found.candidates.front();
  std::string reason = fmt::format("strategy: {}, the fastest that fits: {:.2f} ms a step and {} of {} by {}",
                                   flags_of(best.config, given), best.time.total * 1e3, size_text(best.bytes),
                                   size_text(limit), options.hardware.name);
  for (const Candidate& next : found.candidates)
    if (next.fits && next.config.strategy != best.config.strategy) {
      reason += fmt::format("; next {}: {:.2f} ms, {}", flags_of(next.config, given), next.time.total * 1e3,
                            size_text(next.bytes));
      break;
    }
  return {best.config, reason};
}

StrategyChoice choose_strategy(const sherd::RankContext& rank, const TrainConfig& given) {
  StrategyChoice choice{given, ""};
  if (given.strategy) return choice;
  TrainConfig& c = choice.config;
  c.strategy = kBase;
  c.chosen.clear();
  c.hardware.clear();
  if (!given.trains()) return choice;
  if (rank.world->rank() == 0) {
    SearchOptions options = search_options(rank);
    if (!given.hardware.empty()) {
      const int64_t memory = options.hardware.memory_bytes;
      options.hardware = sherd::hardware_profile(given.hardware);
      options.hardware.memory_bytes = memory;
    }
    choice = choose_strategy(given, options);
  }
  std::array<int64_t, 4> words = {static_cast<int64_t>(*c.strategy), static_cast<int64_t>(c.layout),
                                  c.prefetch, static_cast<int64_t>(c.recompute)};
  take_from_rank_0(rank, words);
  c.strategy = static_cast<sherd::Strategy>(words[0]);
  c.layout = static_cast<LayoutWord>(words[1]);
  c.prefetch = words[2];
  c.recompute = static_cast<Recompute>(words[3]);
  return choice;
}

}  // namespace train_gpt
