// Chunks of a schedule, one function for each kind of entry. Private to optim/.
#pragma once

#include <vector>

#include <sherd/optim/whole/detail/rank_view.h>
#include <sherd/optim/whole/detail/schedule.h>

namespace sherd {

/// Returns a chunk without messages: `inputs` fill one buffer, which holds the batches one after another.
MatrixChunk local_chunk(const RankView& view, const std::vector<int>& list);
/// Returns a chunk with one all-gather-v, of matrices that every rank computes.
MatrixChunk gather_chunk(const RankView& view, const std::vector<int>& list);
/// Returns a chunk with one all-to-all-v to the owners and one back, and the sums of its gram entries.
MatrixChunk exchange_chunk(const RankView& view, const std::vector<int>& list);

}  // namespace sherd
