// Products of bf16 matrices by oneDNN's kernels for them. Private to CPU kernels.
#pragma once

#include <cstdint>
#include <optional>

#include <sherd/kernels/gemm/gemm.h>

namespace sherd::cpu {

/// C = op(A) op(B) + beta * C without the epilogue: sums in f32, C rounded once. False, with nothing done, for other
/// products and where oneDNN has no fast kernel; A and B are then widened.
bool multiply_bf16(ExecutionContext& context, const GemmArgs& g);
/// Returns the scratch bytes that it requests; none for products that it does not compute.
std::optional<int64_t> scratch_bf16(const GemmArgs& g);

}  // namespace sherd::cpu
