// What orthogonalizing costs: FLOPs of the forms and the bytes of sums. Private to optim/.
#pragma once

#include <sherd/optim/muon/plan.h>

namespace sherd {

/// Times that X and R are formed when Gram matrices are summed over ranks: the standard form is the gram form
/// restarted after every step.
int gram_rounds(const PlanOptions& o);
/// FLOPs of the gram form with short side s and long side l: half of 2s^2l and 2s^2l for every formation of R
/// and X; per step half of 2s^3 for R^2, the product into Q (not in the first step of a run) and two into R
/// (not in the last).
double gram_flops(double s, double l, int steps, int restarts);
/// FLOPs of all `owners` of a gram entry together: products with X are shared, the iteration on R is not.
double shared_gram_flops(const LogicalMatrix& m, int owners, const PlanOptions& o);
/// Bytes that each of `owners` ranks receives (and sends) for all sums of an n x n Gram matrix.
int64_t gram_sum_bytes(int64_t n, int64_t owners, const PlanOptions& o);
/// FLOPs on one rank for a matrix that is not a gram entry, tensor parallelism included.
double rank_flops(const LogicalMatrix& m, const PlanOptions& o);
/// Bytes that one tensor-parallel rank receives for its matrix: the other parts, or the sums.
int64_t tensor_bytes(const LogicalMatrix& m, const PlanOptions& o);

}  // namespace sherd
