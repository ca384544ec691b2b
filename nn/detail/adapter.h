// Low-rank adapters of products.
#pragma once

#include <memory>
#include <vector>

#include <sherd/comm/core/communicator.h>
#include <sherd/nn/function.h>

namespace sherd::nn::detail {

/// A pair that learns beside a weight [out, in]: y += scale * (x a^T) b^T (Hu et al., LoRA, 2021, arXiv 2106.09685).
struct Adapter {
  Parameter a, b;      // [rank, in], [out, rank]
  float scale = 1;     // alpha / rank
  int64_t column = 0;  // of y, the first that the weight makes
  /// Ranks over which the gradient of a, and that of b, is summed: that of the one that is whole on all of them, while the
  /// weight and the other are cut. Null: none.
  std::shared_ptr<Communicator> sum_a = nullptr, sum_b = nullptr;
  std::shared_ptr<const bool> used = nullptr;  // of all of the model; null: always
};

/// Returns y with the adapters' products added: x [n, in] is what y [n, columns] is a product of. Saves x and n * rank
/// elements for each adapter. Overwrites y where this Var alone holds its memory, as rope() does. Backward sums over
/// sum_a and sum_b: a collective.
/// @param adapters may be empty: y itself
Var add_adapters(Var y, const Var& x, const std::vector<Adapter>& adapters);

}  // namespace sherd::nn::detail
