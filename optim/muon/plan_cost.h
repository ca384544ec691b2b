// Cost of orthogonalizing a matrix: FLOPs of the two forms, and bytes of the sums over ranks.
#pragma once

#include <cstdint>

#include <sherd/kernels/orthogonalize/orthogonalize.h>
#include <sherd/optim/muon/plan_options.h>
#include <sherd/optim/whole/logical_matrix.h>

namespace sherd {

/// Returns the cost that plans balance: Newton-Schulz on one rank, steps * s^2 * (2l + s) with the short side
/// s and the long side l of the whole matrix, of whose rows a fraction counts. Under distributed tensor parallelism s is the side of the Gram
/// matrices, the one that is not cut, and l this rank's part of the other.
double cost_of(const LogicalMatrix& m, const PlanOptions& o);
/// Returns the FLOPs of a whole matrix on one rank. A symmetric product counts half, since only one triangle
/// is computed.
double flops_of(int64_t rows, int64_t cols, const PlanOptions& o);

/// Returns the runs of the iteration when Gram matrices are summed over ranks, each starting with R = X X^T:
/// restarts + 1. The standard form is the gram form restarted after every step.
int gram_rounds(const PlanOptions& o);
/// Returns the FLOPs of all `owners` of a gram entry together: each forms R and Q X of its own rows, and all
/// iterate on the same R.
double shared_gram_flops(const LogicalMatrix& m, int owners, const PlanOptions& o);
/// Returns the bytes that each of `owners` ranks receives (and sends) for all sums of an n x n Gram matrix
/// (f32). A round is a reduce-scatter and an all-gather of n^2 elements.
int64_t gram_sum_bytes(int64_t n, int64_t owners, const PlanOptions& o);
/// Returns the FLOPs on one rank for a matrix that is not a gram entry, tensor parallelism included.
double rank_flops(const LogicalMatrix& m, const PlanOptions& o);
/// Returns the bytes that one tensor-parallel rank receives for its matrix: the other parts, or the sums.
int64_t tensor_bytes(const LogicalMatrix& m, const PlanOptions& o);

}  // namespace sherd
