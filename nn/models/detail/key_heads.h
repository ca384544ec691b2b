// Key and value heads that several ranks need.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/nn/function.h>

namespace sherd::nn::detail {

/// The key heads that queries [first, first + count) of `heads` use, in the form that attention() takes them:
/// each of the result serves count / size() queries. Where the queries of a rank do not share them evenly
/// (three queries on two heads), every query has its own, and a head is there several times.
std::vector<int64_t> key_heads(int64_t first, int64_t count, int64_t heads, int64_t kv_heads);

/// qkv for attention(): the columns of q [n, ...], then of kv [n, 2 * kv_heads * head_dim] the chosen heads
/// of k and the same of v. Copies; backward adds the gradients of a head that is there several times.
Var with_key_heads(const Var& q, const Var& kv, const std::vector<int64_t>& chosen, int64_t head_dim);

}  // namespace sherd::nn::detail
