// Collectives on values, with gradients.
//
// Every rank of `comm` calls the same functions in the same order, forward and backward, with values of one shape and dtype
// unless a function says otherwise; they run on the compute stream. A null communicator is a group of one, in which all
// of them return x. Nothing that depends on one rank may keep it from backward.
//
// Backward computes the gradient of the sum of all ranks' objectives. fully_shard() averages gradients over the data-parallel
// ranks, so training minimises the mean of the ranks' objectives. Hence a contrastive loss of n rows on each of P ranks is,
// on each rank, the mean over its own n rows of their loss among all P * n gathered rows, without a factor; a rank
// that computes the mean over all P * n rows, as every other rank does, trains the same. Outside of fully_shard(), where
// gradients are summed over ranks, divide by P.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <sherd/comm/core/communicator.h>
#include <sherd/nn/function.h>

namespace sherd::nn {

/// Returns every rank's x one after another along `dim`, in rank order. Backward is reduce_scatter().
Var all_gather(const std::shared_ptr<Communicator>& comm, const Var& x, int64_t dim = 0);
/// Returns this rank's slice along `dim` of the sum of all ranks' x; the number of ranks divides that size. Backward is
/// all_gather(). @throws ShapeMismatch where it does not.
Var reduce_scatter(const std::shared_ptr<Communicator>& comm, const Var& x, int64_t dim = 0);
/// Returns the sum of all ranks' x. Backward sums the ranks' gradients.
Var all_reduce(const std::shared_ptr<Communicator>& comm, const Var& x);
/// Returns the slices along `dim` that the ranks hold for this one, by rank: x is cut into a slice for each rank, of one size.
/// Backward sends the gradients back. @throws ShapeMismatch where the number of ranks does not divide the size.
Var all_to_all(const std::shared_ptr<Communicator>& comm, const Var& x, int64_t dim = 0);
/// Returns the rows that the ranks send to this one, by rank: x [sum of send_rows, ...] has send_rows[r] rows for rank r, which
/// receives as many as its receive_rows say of this rank; the further dimensions are equal on all ranks.
/// @throws ShapeMismatch for rows that do not add up.
Var all_to_all(const std::shared_ptr<Communicator>& comm, const Var& x, const std::vector<int64_t>& send_rows,
               const std::vector<int64_t>& receive_rows);

}  // namespace sherd::nn
