// Exchange of partial Gram matrices between the owners of gram entries. Private to optim/.
#pragma once

#include <sherd/optim/whole/detail/rank_view.h>
#include <sherd/optim/whole/detail/schedule.h>

namespace sherd {

/// Returns the exchange for all gram batches of a chunk at once.
GramExchange gram_exchange(const RankView& view, const MatrixChunk& chunk);

}  // namespace sherd
