// Plan of a Muon step: the ranks that orthogonalize each matrix. Arithmetic, the same on every rank without
// communication.
//
// The words, here and in the files that carry a plan out:
// - matrix: a logical matrix (LogicalMatrix), one block of one parameter, orthogonalized by itself.
// - slot: a parameter that Muon updates, with its momentum.
// - team: the ranks that exchange matrices; those that share a parameter's layout, and its replicas where
//   they share the work. A plan, and a schedule for each rank, belong to one team.
// - cell: a rank of the layout, with the piece of every parameter that it keeps. Replicas keep the same cell.
// - copy: one of the replicas in a team, which keep the same cell.
// - holder: a rank whose cell has elements of the matrix.
// - owner: a rank that orthogonalizes the matrix, alone or with others. It need not hold any of it.
// - entry: what a plan says of one matrix, that is the mode, the owners, the bytes and FLOPs.
// - chunk: the matrices that travel together, in one all-to-all-v in and one out.
// - batch: the matrices of a chunk, of one shape, that a rank orthogonalizes in one call.
// - piece: what a rank keeps of a parameter, a flat interval of its elements.
// - segment: consecutive elements that one pass copies or updates, in a piece, a message or a matrix.
// - slice: the elements of a Gram matrix that one owner adds up for all owners.
//
// An example, checked by a test: up [4096 x 64] and down [64 x 4096], f32, on a team of two ranks, each of
// which holds half of the rows of both; five steps, MuonMode::automatic, allow_inexact.
// - up is a gram entry: owners {0, 1}, first_row {0, 2048, 4096}. Each forms R = X^T X [64 x 64] of its own
//   2048 rows, so no row travels. R is summed in each of the five steps: a rank receives half of the other's
//   R and half of the sum, 8 KiB each; 5 * 16 KiB = 81,920 bytes. 127,139,840 FLOPs on each rank.
// - down is an owner entry, for it has fewer rows than columns: owners {0}. Rank 1 sends its 32 rows of
//   momentum (524,288 bytes) and receives as many of the result. 252,968,960 FLOPs, all on rank 0.
// As an owner entry up would cost as much as down. As a gram entry it takes half of the time and moves
// 163,840 bytes instead of 1,048,576; its result differs from that of one rank by rounding.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <sherd/optim/whole/logical_matrix.h>
#include <sherd/optim/muon/muon_options.h>
#include <sherd/optim/muon/plan_cost.h>
#include <sherd/optim/muon/plan_options.h>

namespace sherd {

/// local: the matrix lies on one rank, which orthogonalizes it. owner: one rank receives it, orthogonalizes
/// it and sends the pieces of the result back. gram: each owner holds a range of its rows; Gram matrices are
/// summed over them. gather: every rank receives all of it.
enum class PlanMode { local, owner, gram, gather };
const char* name_of(PlanMode m);

struct PlanEntry {
  PlanMode mode = PlanMode::local;
  /// Ranks of the team that orthogonalize it, ascending. Where every replica is a team by itself, all of
  /// these teams have the same plan.
  std::vector<int> owners = {};
  /// gram: owner i holds rows [first_row[i], first_row[i + 1]) of the matrix.
  std::vector<int64_t> first_row = {};
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
  std::vector<PlanEntry> entries = {};  // of the matrices, in order
  std::vector<PlanRank> ranks = {};     // of the team
  /// Largest cost on a rank / max(sum of all matrices' costs / ranks, largest single cost).
  double imbalance = 1;
  /// Cost that the ranks of all replicas and tensor-parallel parts pay together / cost of orthogonalizing
  /// every matrix once.
  double redundancy = 1;
  double seconds = 0;  // of the slowest rank, by PlanCosts
  uint64_t fingerprint = 0;

  int team() const { return cells * copies; }
};

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
