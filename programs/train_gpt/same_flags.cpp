#include "same_flags.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/comm/core/require_equal.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/random/random.h>

#include "config_fields.h"

namespace train_gpt {
namespace {

constexpr std::array<std::string_view, 5> kGroups{"Data", "Ranks and sharding", "Model", "Training", "Muon"};
constexpr std::array<std::string_view, 21> kOthers{
    "check_replicas", "verify_step", "max_wall",      "save_every",      "async_save",
    "save_failure",   "save_retry",  "resume_parts",  "allow_new_state", "eval_every",
    "measure_peak",   "trace_steps", "export_dtype",  "eval_only",       "sample_only",
    "sample",         "prompt",      "prompt_tokens", "temperature",     "top_p",
    "eval_windows"};
// Of paths it matters only whether there is one: hosts may have the same files in different places.
constexpr std::array<std::string_view, 10> kPaths{
    "data",   "tokens", "valid_tokens", "init_weights",   "save",
    "resume", "trace",  "timeline",     "export_weights", "export_hf"};

struct Flag {
  std::string name, value;
  bool is_path = false;
};

std::vector<Flag> flags_of(const TrainConfig& config) {
  TrainConfig copy = config;
  std::vector<Flag> flags;
  for (const sherd::FieldGroup& group : fields_of(copy)) {
    const bool whole_group = std::ranges::find(kGroups, group.title) != kGroups.end();
    for (const sherd::Field& field : group.fields) {
      const std::string value = sherd::show_value(field);
      if (std::ranges::find(kPaths, field.name) != kPaths.end())
        flags.push_back({sherd::flag_of(field), value.empty() ? "not given" : "given", true});
      else if (whole_group || std::ranges::find(kOthers, field.name) != kOthers.end())
        flags.push_back({sherd::flag_of(field), value});
    }
  }
  return flags;
}

}  // namespace

void check_same_flags(const sherd::RankContext& rank, const TrainConfig& config,
                      const std::function<void()>& check_files) {
  if (config.comm == "local") return;
  const std::vector<Flag> flags = flags_of(config);
  std::vector<uint64_t> digests;
  for (const Flag& flag : flags) digests.push_back(sherd::hash64(0, flag.value));
  const auto compared = sherd::compare_values(*rank.world, rank.device->compute(), digests);
  std::vector<std::string> wrong;
  std::vector<int> odd;
  bool same_paths = true;
  for (size_t i = 0; i < flags.size(); ++i) {
    if (compared[i].equal()) continue;
    same_paths = same_paths && !flags[i].is_path;
    const std::vector<int>& ranks = compared[i].odd_ranks;
    wrong.push_back(fmt::format("{} of rank{} {} (here {})", flags[i].name, ranks.size() > 1 ? "s" : "",
                                fmt::join(ranks, ", "), flags[i].value.empty() ? "empty" : flags[i].value));
    odd.insert(odd.end(), ranks.begin(), ranks.end());
  }
  if (check_files && same_paths) check_files();
  if (wrong.empty()) return;
  std::sort(odd.begin(), odd.end());
  odd.erase(std::unique(odd.begin(), odd.end()), odd.end());
  throw sherd::RanksDiffer(
      fmt::format("rank {}: the processes of the job were given different flags; not as on the other ranks: {}; start "
                  "all with the same",
                  rank.world->rank(), fmt::join(wrong, ", ")),
      odd);
}

bool as_rank_0_says(const sherd::RankContext& rank, const TrainConfig& config, bool mine) {
  if (config.comm == "local") return mine;
  int64_t value = mine ? 1 : 0;
  sherd::Stream& s = rank.device->compute();
  const sherd::Tensor word = sherd::Tensor::empty(*rank.device, {1}, sherd::DType::i64, "flags");
  sherd::ops::copy_from_host(s, word, &value, sizeof value);
  rank.world->broadcast(s, word, 0);
  sherd::ops::copy_to_host(s, &value, word);
  return value != 0;
}

}  // namespace train_gpt
