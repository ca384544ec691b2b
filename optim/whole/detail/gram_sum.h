// Sum of partial Gram matrices over their owners. Private to optim/.
#pragma once

#include <sherd/comm/core/communicator.h>
#include <sherd/kernels/device/stream.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/optim/whole/detail/buffers.h>
#include <sherd/optim/whole/detail/schedule.h>

namespace sherd {

/// Queues the sum in place: two all-to-all-v, with the same rounding on all owners. Ranks without a Gram
/// matrix take part, too, since the team's collectives have one order.
void sum_over_owners(Stream& compute, Communicator& team, const MatrixBuffers& buffers, const Tensor& grams,
                     const GramExchange& exchange);

}  // namespace sherd
