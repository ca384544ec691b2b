// Muon: orthogonalized momentum for matrices.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/group.h>
#include <sherd/optim/muon/plan.h>
#include <sherd/optim/muon/refinement.h>
#include <sherd/optim/update_rule.h>

namespace sherd {

class MuonTeam;
struct MuonStreams;

/// Muon (Jordan et al. 2024) over sharded matrices. Per step: momentum and Nesterov on the local elements
/// (EMA form, as torch.optim.Muon); every logical matrix (row block, matrix of a stack) is brought together
/// where the plan says, orthogonalized, and the result sent back; each rank updates its own elements:
///   w = decay * w - lr * scale * O.
/// Momentum is sharded exactly like the parameter, so plans and modes leave no trace in the state.
///
/// Bits: local, owner and gather entries run one kernel on the same whole matrix, and give what one rank
/// alone would. gram entries and `distributed` tensor parallelism sum Gram matrices over ranks: equal to
/// rounding.
///
/// Messages travel in chunks, one all-to-all-v each way, on two side streams: chunk k is computed while k + 1
/// arrives and k - 1 returns; what needs no message comes first.
class Muon : public UpdateRule {
 public:
  using Item = UpdateItem;
  /// For Optimizer.
  static UpdateRuleFactory factory(const MuonOptions& options);
  /// Collective: makes communicators, and compares the plans' fingerprints once.
  /// @throws ShapeMismatch naming every item that is neither a matrix nor a stack of them; InvalidArgument
  /// naming all options and weight decays that cannot be, or when a forced mode is not possible; ShapeMismatch on
  /// every rank when ranks planned differently.
  /// @param refinement what an optimizer on top of Muon does with the orthogonalized matrices, in the place of
  /// Muon's scale; null: Muon itself. Outlives it; the same on every rank.
  Muon(Device& device, std::vector<Item> items, MuonOptions options, MuonRefinement* refinement = nullptr);
  /// Lets the side streams finish. Destroyed by an exception that unwinds the rank, it aborts the group
  /// first.
  ~Muon() override;
  /// With `skip` other than 0 messages travel all the same, but neither weights nor momentum change.
  void step(Stream& compute, double lr, const Tensor& skip = {}) override;
  /// momentum_buffer of every parameter.
  std::vector<StateTensor> state() const override;

  /// The plan of each set of ranks that shares layouts (experts have their own), for people.
  std::string explain() const;
  const std::vector<MuonPlan>& plans() const { return plans_; }
  /// Queues a device-to-host copy of the latest step's status of every matrix. Hand it to report() after the
  /// compute stream has passed this point.
  std::vector<Tensor> copy_statuses();
  /// Logical matrices whose update in that step was zero because the matrix was zero or not finite, as far as
  /// this rank reports them: every matrix is reported by one rank of its team.
  std::vector<std::pair<std::string, MatrixStatus>> report(const std::vector<Tensor>& statuses) const;
  /// The same of the latest step. Waits for the compute stream.
  std::vector<std::pair<std::string, MatrixStatus>> report();

 private:
  Device& device_;
  MuonOptions options_;
  std::vector<MuonPlan> plans_;
  std::vector<std::pair<size_t, size_t>> order_;  // team and slot of each item
  int exceptions_before_ = std::uncaught_exceptions();
  std::vector<std::unique_ptr<MuonTeam>> teams_;
  std::unique_ptr<MuonStreams> streams_;  // last: they finish before the communicators go
};

}  // namespace sherd
