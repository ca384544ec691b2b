#include "rank_choice.h"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sherd::tools {

bool RankRules::allow(int64_t ranks) const {
  if (ranks % tp != 0 || ranks / tp % replicas != 0 || ranks % ep != 0) return false;
  return batch == 0 || (batch % grad_accum == 0 && batch / grad_accum % (ranks / tp) == 0);
}

std::string RankRules::describe() const {
  std::vector<std::string> said;
  if (batch > 0) said.push_back(fmt::format("a batch of {}", batch));
  if (grad_accum > 1) said.push_back(fmt::format("{} microbatches", grad_accum));
  if (replicas > 1) said.push_back(fmt::format("{} replicas", replicas));
  if (tp > 1) said.push_back(fmt::format("{} tensor-parallel ranks", tp));
  if (ep > 1) said.push_back(fmt::format("{} expert-parallel ranks", ep));
  return said.empty() ? "no rule" : fmt::format("{}", fmt::join(said, ", "));
}

int64_t choose_ranks(int64_t most, int64_t least, const RankRules& rules) {
  for (int64_t ranks = most; ranks >= least && ranks >= 1; --ranks)
    if (rules.allow(ranks)) return ranks;
  return 0;
}

}  // namespace sherd::tools
