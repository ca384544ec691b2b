// Search for slice size and offsets of a ragged layout. Private to dtensor/.
#pragma once

#include <sherd/dtensor/layout.h>

namespace sherd {

struct RaggedPlacement {
  int64_t slice = 0;
  std::vector<int64_t> begin;  // per parameter, in the full buffer
};

/// Places the parameters without overlap in world * slice elements so that few rank boundaries fall inside
/// rows.
///
/// slice is a multiple of options.align, itself one of every granule. Larger granules stand first, so that every parameter begins
/// at a multiple of its own. world * slice is at most the larger of
/// world * roundup(ceil(total / world), align) (what alignment alone costs) and (1 + padding_budget) * total.
/// Among the candidates tried, fewest cut rows win, then the smallest slice, then the order nearest to the
/// given one rotated by options.rotation. A pure function of its arguments, which ShardLayout::make has
/// checked.
RaggedPlacement place_ragged(const std::vector<LayoutParam>& params, int world, const LayoutOptions& options);

}  // namespace sherd
