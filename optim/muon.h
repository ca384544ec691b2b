// Muon: orthogonalized momentum for matrices.
#pragma once

#include <vector>

#include <sherd/optim/muon/muon_options.h>
#include <sherd/optim/whole/refinement.h>
#include <sherd/optim/whole_matrices.h>

namespace sherd {

/// Muon (Jordan et al. 2024) over sharded matrices: WholeMatrices whose rule is orthogonalization.
///  w = decay * w - lr * scale * O.
/// gram entries and `distributed` tensor parallelism sum Gram matrices over ranks: equal to rounding.
class Muon : public WholeMatrices {
 public:
  using Item = UpdateItem;
  /// Returns the factory for Optimizer.
  [[nodiscard]] static UpdateRuleFactory factory(const MuonOptions& options);
  /// Collective, as WholeMatrices.
  /// @throws as WholeMatrices does; InvalidArgument naming all invalid options.
  Muon(Device& device, std::vector<Item> items, const MuonOptions& options,
       MatrixRefinement* refinement = nullptr);
};

}  // namespace sherd
