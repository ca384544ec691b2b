#include "rank_choice.h"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sherd::tools {

bool RankRules::allow(int64_t ranks) const {
  const int64_t shared = tp * context;
  if (ranks % shared != 0 || ranks / shared % replicas != 0 || ranks % ep != 0) return false;
  return batch == 0 || (batch % grad_accum == 0 && batch / grad_accum % (ranks / shared) == 0);
}

std::string RankRules::describe() const {
  std::vector<std::string> said;
  if (batch > 0) said.push_back(fmt::format("a batch of {}", batch));
  if (grad_accum > 1) said.push_back(fmt::format("{} microbatches", grad_accum));
  if (replicas > 1) said.push_back(fmt::format("{} replicas", replicas));
  if (tp > 1) said.push_back(fmt::format("{} tensor-parallel ranks", tp));
  if (context > 1) said.push_back(fmt::format("{} context-parallel ranks", context));
  if (ep > 1) said.push_back(fmt::format("{} expert-parallel ranks", ep));
  return said.empty() ? "no rule" : fmt::format("{}", fmt::join(said, ", "));
}

int64_t choose_ranks(int64_t most, int64_t least, const RankRules& rules) {
  for (int64_t ranks = most; ranks >= least && ranks >= 1; --ranks)
    if (rules.allow(ranks)) return ranks;
  return 0;
}

}  // namespace sherd::tools
