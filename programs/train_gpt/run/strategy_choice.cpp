#include "train_gpt/run/strategy_choice.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>

#include "train_gpt/rules/config_rules.h"
#include "train_gpt/run/same_flags.h"
#include "train_gpt/settings/settings.h"

namespace train_gpt {
namespace {

constexpr sherd::Strategy kBase = sherd::Strategy::optim_grads_params;
/// Operations in dry runs, at most: some ten seconds.
constexpr int64_t kMostWork = 2'000'000;

/// Values of kChosen, for a broadcast.
using Words = std::array<int64_t, std::size(kChosen)>;

Words words_of(const TrainConfig& c) {
  return {static_cast<int64_t>(*c.strategy), static_cast<int64_t>(c.layout), c.prefetch,
          static_cast<int64_t>(c.recompute)};
}

/// The run with these values. It has been chosen, and the rates are of no further use.
TrainConfig with_words(TrainConfig c, const Words& words) {
  c.strategy = static_cast<sherd::Strategy>(words[0]);
  c.layout = static_cast<LayoutWord>(words[1]);
  c.prefetch = words[2];
  c.recompute = static_cast<Recompute>(words[3]);
  c.chosen.clear();
  c.hardware.clear();
  return c;
}

TrainConfig base_of(const TrainConfig& given) {
  TrainConfig base = given;
  base.strategy = kBase;
  return with_words(base, words_of(base));
}

/// The flags of what was chosen.
std::string flags_of(const TrainConfig& config, const TrainConfig& given) {
  const auto chosen = [&](std::string_view name) { return std::ranges::count(given.chosen, name) > 0; };
  return fmt::format("{}", fmt::join(changed_flags(config, given, chosen), " "));
}

[[noreturn]] void throw_nothing_fits(const TrainConfig& given, const SearchResult& found,
                                     const SearchOptions& options, int64_t limit) {
  std::string text = fmt::format("--strategy auto: no run{} fits in 99 % of {} of a rank",
                                 found.ended_early ? fmt::format(" of {} that were planned", found.runs) : "",
                                 size_text(limit));
  if (!found.candidates.empty())
    text += fmt::format("; the nearest takes {}, with {}", memory_text(found.candidates.front()),
                        flags_of(found.candidates.front().config, given));
  text += "; give more memory, more --ranks or a smaller --batch";
  const std::string base = fmt::format("--strategy {} ", word_of(kBase));
  for (const Candidate& c : remedies(base_of(given), options, {.memory_bytes = limit}, 3))
    if (c.fits)
      text += fmt::format(", or {}{} ({}, {:.2f} ms a step, {})", c.config.strategy == kBase ? base : "",
                          fmt::join(c.changes, " "), memory_text(c), c.time.total * 1e3,
                          c.same_bits ? "the same bits" : "other bits");
  throw sherd::OutOfMemory(text);
}

}  // namespace

StrategyChoice choose_strategy(const TrainConfig& given, SearchOptions options) {
  Constraints constraints{.fixed = {kSearched.begin(), kSearched.end()},
                          .keep_bits = true,
                          .names_no_folder = true,
                          .memory_bytes = given.memory_limit};
  for (const std::string& name : given.chosen) constraints.fixed.erase(name);
  const int64_t limit = given.memory_limit > 0 ? given.memory_limit : options.hardware.memory_bytes;
  options.most_work = std::min(options.most_work, kMostWork);
  const SearchResult found = Search(base_of(given), options).run(constraints);
  if (found.candidates.empty() && !found.refused.empty()) throw sherd::InvalidArgument(found.refused);
  if (!found.fits()) throw_nothing_fits(given, found, options, limit);
  const Candidate& best = found.candidates.front();
  std::string reason = fmt::format(
      "strategy: {}, the fastest that fits{}: {:.2f} ms a step and {} of {}{}, by {}",
      flags_of(best.config, given), found.ended_early ? fmt::format(", of {} dry runs", found.runs) : "",
      best.time.total * 1e3, size_text(best.bytes), size_text(limit),
      best.host_bytes > 0 ? fmt::format(" and {} on the host", size_text(best.host_bytes)) : "",
      options.hardware.name);
  const auto next = std::ranges::find_if(found.candidates, [&](const Candidate& c) {
    return c.fits && c.config.strategy != best.config.strategy;
  });
  if (next != found.candidates.end())
    reason += fmt::format("; {} {}: {:.2f} ms, {}", next->time.total > best.time.total ? "next" : "as fast",
                          flags_of(next->config, given), next->time.total * 1e3, memory_text(*next));
  if (const auto idle = idle_under_strategy(best.config); !idle.empty())
    reason += fmt::format("; {} without effect on it", fmt::join(idle, ", "));
  return {with_words(given, words_of(best.config)), reason};
}

StrategyChoice choose_strategy(const sherd::RankContext& rank, const TrainConfig& given) {
  if (given.strategy) return {given, ""};
  if (!given.trains()) return {base_of(given), ""};
  // The last word says whether the others are the choice. Until then rank 0 sends them, so that no rank waits for long.
  std::array<int64_t, std::size(kChosen) + 1> words = {};
  std::string reason;
  if (rank.world->rank() == 0) {
    SearchOptions options = search_options(rank);
    if (!given.hardware.empty()) {
      const int64_t memory = options.hardware.memory_bytes;
      options.hardware = sherd::hardware_profile(given.hardware);
      options.hardware.memory_bytes = memory;
    }
    auto sent = std::chrono::steady_clock::now();
    options.on_dry_run = [&] {
      const auto now = std::chrono::steady_clock::now();
      if (rank.world->size() == 1 || now - sent < std::chrono::milliseconds(500)) return;
      take_from_rank_0(rank, words);
      sent = now;
    };
    StrategyChoice choice = choose_strategy(given, options);
    reason = choice.reason;
    std::ranges::copy(words_of(choice.config), words.begin());
    words.back() = 1;
  }
  do {
    take_from_rank_0(rank, words);
  } while (words.back() == 0);
  Words chosen;
  std::copy_n(words.begin(), chosen.size(), chosen.begin());
  return {with_words(given, chosen), reason};
}

}  // namespace train_gpt
