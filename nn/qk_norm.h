// Normalisation of queries and keys.
#pragma once

#include <vector>

#include <sherd/nn/function.h>
#include <sherd/nn/tensor_parallel.h>

namespace sherd::nn {

/// RMSNorm of each head of q and of k by itself, as Qwen3 does before rope(): qkv [rows, (heads + 2 *
/// kv_heads) * head_dim] with the heads of q, of k and of v side by side; each head of q becomes x /
/// sqrt(mean(x^2) + eps) * q, each of k the same with k, and v stays. q and k are [head_dim]; one head's
/// length follows from them, and kv_heads from qkv's columns. Keeps qkv and one f32 for each row and head;
/// the columns of q and k are copied together for the norm and back, on the device, in forward and in
/// backward. (Dehghani et al., Scaling Vision Transformers to 22 Billion Parameters, 2023; Henry et al.,
/// 2020, in another form.)
/// @param tp ranks of which each has other heads, while q and k are whole on all of them: their gradients are summed
/// over them.
/// @param base is added to q and k, as in rms_norm()
/// @throws ShapeMismatch for columns that are not whole heads.
Var qk_norm(const Var& qkv, const Parameter& q, const Parameter& k, int64_t heads, float eps = 1e-6f,
            const TensorParallel& tp = {}, float base = 0);

/// RMSNorm of all columns of q together, and of all of k, as OLMo 2 does before rope(): x [rows, columns] begins with the
/// columns of each weight, in turn; the columns behind them stay. Keeps the same.
/// @param tp ranks of which each has as many columns of every row, and of the weights: the rows' sums are added over them,
/// in one all-reduce of an f32 for each row and weight, in forward and in backward.
/// @throws ShapeMismatch for fewer columns than the weights have.
Var projection_norm(const Var& x, const std::vector<Parameter>& weights, float eps = 1e-6f,
                    const TensorParallel& tp = {});

}  // namespace sherd::nn
