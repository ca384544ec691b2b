// Context parallelism of a plan: ranks that share a sequence.
#pragma once

#include <cstdint>

#include <sherd/train/plan/dry_rank.h>

namespace sherd::tools {

struct ContextPlan {
  int ranks = 1;         // of a sequence, consecutive in the world
  int64_t part = 0;      // tokens of a sequence on each of them
  int64_t kv_bytes = 0;  // keys and values of one block on one rank, all sequences of a microbatch
  int ranks_per_host = 8;
};

/// Adds to a dry run with sequences of `part` tokens what whole sequences cost (Ring Attention, Liu et al. 2023,
/// arXiv:2310.01889): attention over all earlier tokens, balanced between the ranks; in each forward the keys and values
/// of the other ranks, in each backward these and their gradients, exchanged while attention computes, in two further
/// buffers.
void add_context(RankForecast& rank, const ContextPlan& plan);

}  // namespace sherd::tools
