#include "train_gpt/run/same_flags.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/comm/core/require_equal.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/random/random.h>

#include "train_gpt/settings/settings.h"

namespace train_gpt {
namespace {

struct Flag {
  std::string name, value;
  bool is_path = false;
};

std::vector<Flag> flags_of(const TrainConfig& config) {
  TrainConfig copy = config;
  std::vector<Flag> flags;
  for (const sherd::FieldGroup& group : fields_of(copy)) {
    for (const sherd::Field& field : group.fields) {
      const proto::Setting& setting = setting_of(field.name);
      if (setting.scope() == proto::OF_RANK) continue;
      const std::string value = sherd::show_value(field);
      const std::string shown = !setting.path() ? value : value.empty() ? "not given" : "given";
      flags.push_back({sherd::flag_of(field), shown, setting.path()});
    }
  }
  return flags;
}

}  // namespace

void check_same_flags(const sherd::RankContext& rank, const TrainConfig& config,
                      const std::function<void()>& check_files) {
  if (config.comm == sherd::BackendKind::local) return;
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
  throw sherd::RanksDiffer(fmt::format("rank {}: the processes of the job were given different flags; not as "
                                       "on the other ranks: {}; start "
                                       "all with the same",
                                       rank.world->rank(), fmt::join(wrong, ", ")),
                           odd);
}

bool as_rank_0_says(const sherd::RankContext& rank, const TrainConfig& config, bool mine) {
  if (config.comm == sherd::BackendKind::local) return mine;
  int64_t value = mine ? 1 : 0;
  take_from_rank_0(rank, {&value, 1});
  return value != 0;
}

void take_from_rank_0(const sherd::RankContext& rank, std::span<int64_t> values) {
  sherd::Stream& s = rank.device->compute();
  const sherd::Tensor words =
      sherd::Tensor::empty(*rank.device, {std::ssize(values)}, sherd::DType::i64, "flags");
  sherd::ops::copy_from_host(s, words, values.data(), values.size_bytes());
  rank.world->broadcast(s, words, 0);
  sherd::ops::copy_to_host(s, values.data(), words);
}

}  // namespace train_gpt
