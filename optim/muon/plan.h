// Who orthogonalizes which matrix: decided by arithmetic, the same on every rank without talking.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <sherd/optim/muon/logical_matrix.h>
#include <sherd/optim/muon/muon_options.h>

namespace sherd {

/// local: the matrix lies on one rank, which orthogonalizes it. owner: one rank receives it, orthogonalizes
/// it and sends the pieces of the result back. gram: each owner holds a range of its rows; Gram matrices are
/// summed over them. gather: every rank receives all of it.
enum class PlanMode { local, owner, gram, gather };
const char* name_of(PlanMode m);

struct PlanOptions {
  MuonMode mode = MuonMode::automatic;
  bool allow_inexact = false;
  int steps = 5;
  Orthogonalizer method = Orthogonalizer::newton_schulz;
  IterationForm form = IterationForm::standard;
  int restarts = 0;
  MuonTensorMode tensor = MuonTensorMode::duplicated;
  int64_t payload_bytes = 4;  // per element
  PlanCosts costs;
};
/// The part of the options that a plan depends on.
PlanOptions plan_options(const MuonOptions& options);

struct PlanEntry {
  PlanMode mode = PlanMode::local;
  /// Ranks of the team that orthogonalize it, ascending. With one copy in the team and several replicas,
  /// every replica has the same.
  std::vector<int> owners;
  /// gram: owner i holds rows [first_row[i], first_row[i + 1]) of the matrix.
  std::vector<int64_t> first_row;
  /// Bytes that travel between ranks for it, summed over the team; FLOPs, summed over the owners.
  int64_t bytes = 0;
  double flops = 0;
};

/// One rank's share of a plan.
struct PlanRank {
  int64_t bytes_in = 0, bytes_out = 0;  // received, sent
  double flops = 0;
  double cost = 0;
  int64_t matrices = 0;  // that it orthogonalizes, alone or with others
};

/// The team is the group of ranks that exchange matrices. Rank t of it holds cell t / copies of the layouts;
/// `copies` is 1 when every replica works for itself, else the number of replicas: then each matrix is
/// orthogonalized once, and its owner sends the result to all of them.
struct MuonPlan {
  int cells = 1, replicas = 1, copies = 1;
  std::vector<PlanEntry> entries;  // of the matrices, in order
  std::vector<PlanRank> ranks;     // of the team
  /// Largest cost on a rank / max(sum of all matrices' costs / ranks, largest single cost).
  double imbalance = 1;
  /// Cost that the ranks of all replicas and tensor-parallel parts pay together / cost of orthogonalizing
  /// every matrix once.
  double redundancy = 1;
  double seconds = 0;  // of the slowest rank, by PlanCosts
  uint64_t fingerprint = 0;

  int team() const { return cells * copies; }
};

/// Newton-Schulz cost on one rank, steps * s^2 * (2l + s) with the short side s and the long side l of the
/// whole matrix. Under distributed tensor parallelism s is the side of the Gram matrices, the one that is not
/// cut, and l this rank's part of the other.
double cost_of(const LogicalMatrix& m, const PlanOptions& o);
/// FLOPs with half-work symmetric products, whole matrix on one rank.
double flops_of(int64_t rows, int64_t cols, const PlanOptions& o);

/// @param cells world of every matrix's layout; `replicas` groups of ranks hold the same cells.
///
/// What lies on one rank stays there. The others go to owners by LPT: largest cost first, to the rank with
/// the least load so far (local work counted, every rank is a candidate, ties to the lowest); a rank that
/// holds at least its share of the matrix is preferred while that keeps the balance within 5 % of the bound.
/// `automatic` deals out local matrices, too, where they alone break the balance, spreads owners over
/// replicas where that is faster, and uses gram only if allowed and faster.
/// @throws InvalidArgument naming all matrices for which a forced mode is not possible.
MuonPlan make_plan(std::span<const LogicalMatrix> matrices, int cells, int replicas,
                   const PlanOptions& options);

/// The plan for people: how many matrices go which way, what each rank receives, sends and computes.
std::string explain(const MuonPlan& plan, std::span<const LogicalMatrix> matrices,
                    const PlanOptions& options);

}  // namespace sherd
