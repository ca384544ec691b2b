// Compilation of a plan for one rank. Private to optim/.
#pragma once

#include <cstdint>
#include <span>

#include <sherd/optim/whole/detail/schedule.h>
#include <sherd/optim/whole/logical_matrix.h>
#include <sherd/optim/whole/plan.h>

namespace sherd {

/// Returns the schedule of `rank` of the team. Every rank has the same chunks, with its own contents.
/// @param chunk_elements bound on each message and each batch of matrices of a rank, as far as single
/// matrices allow. Where Gram matrices are summed (gram entries, and tensor-parallel matrices if
/// `distributed`) they count, too.
MatrixSchedule compile_schedule(std::span<const LogicalMatrix> matrices, const MatrixPlan& plan, int rank,
                                int64_t chunk_elements, bool distributed);

}  // namespace sherd
