// Plan for whole matrices: the ranks that compute each matrix. Arithmetic, the same on every rank without
// communication.
//
// A plan maps the *storage layout* (where the shards of parameters are) to a *compute layout* (where matrices
// are computed). A schedule (detail/schedule.h) lists the elements that move between the two.
//
// The words, here and in the files that carry a plan out:
// - matrix: a logical matrix (LogicalMatrix), one block of one parameter, computed by itself.
// - slot: a parameter that the optimizer updates, with its state.
// - team: the ranks that exchange matrices: those that share a parameter's storage layout, and its replicas
//   where they share the work. A plan, and a schedule for each rank, belong to one team.
// - cell: a rank of the storage layout, with its piece of every parameter. Replicas keep the same cell.
// - copy: one of the replicas in a team, which keep the same cell.
// - holder: a rank whose cell has elements of the matrix.
// - owner: a rank of the compute layout. It computes the matrix, alone or with others, and need not hold any
//   of it.
// - entry: what a plan says of one matrix, that is the mode, the owners, the bytes and FLOPs.
// - chunk: the matrices that travel together, in one all-to-all-v in and one out.
// - batch: the matrices of a chunk, of one shape, that a rank computes in one call.
// - piece: a rank's part of a parameter, a flat interval of its elements.
// - segment: consecutive elements that one pass copies or updates, in a piece, a message or a matrix.
// - slice: the elements of a Gram matrix that one owner adds up for all owners.
//
// An example with Muon, checked by a test: up [4096 x 64] and down [64 x 4096], f32, on a team of two ranks,
// each of which holds half of the rows of both; five steps, MatrixMode::automatic, allow_inexact.
// - up is a gram entry: owners {0, 1}, first_row {0, 2048, 4096}. Each forms R = X^T X [64 x 64] of its own
//   2048 rows, so no row travels. R is summed in each of the five steps: a rank receives half of the other's
//   R and half of the sum, 8 KiB each; 5 * 16 KiB = 81,920 bytes. 127,139,840 FLOPs on each rank.
// - down is an owner entry, since it has fewer rows than columns: owners {0}. Rank 1 sends its 32 rows of
//   momentum (524,288 bytes) and receives as many of the result. 252,968,960 FLOPs, all on rank 0.
// up as an owner entry would cost as much as down. As a gram entry it takes half of the time and moves
// 163,840 bytes instead of 1,048,576; its result differs from that of one rank by rounding.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/base/enum_table.h>

namespace sherd {

/// local: the matrix is stored on one rank, which computes it. owner: one rank receives it, computes it and
/// sends the pieces of the result back. gram: each owner holds a range of its rows; Gram matrices are summed
/// over them. gather: every rank receives all of it.
enum class PlanMode { local, owner, gram, gather };
inline constexpr EnumTable<PlanMode, 4> kPlanModes{"local", "owner", "gram", "gather"};
inline const char* name_of(PlanMode m) { return kPlanModes.name(m); }

struct PlanEntry {
  PlanMode mode = PlanMode::local;
  /// Ranks of the team that compute it, ascending. Where every replica is a team by itself, all of
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
  int64_t matrices = 0;     // that it computes, alone or with others
  int64_t state_bytes = 0;  // of these matrices (MatrixRule::state())
};

/// Rank t of the team holds cell t / copies of the storage layouts. `copies` is 1 when every replica works
/// for itself, else the number of replicas: then each matrix is computed once, and its owner sends the result
/// to all of them.
struct MatrixPlan {
  int cells = 1, replicas = 1, copies = 1;
  std::vector<PlanEntry> entries = {};  // of the matrices, in order
  std::vector<PlanRank> ranks = {};     // of the team
  /// Largest cost on a rank / max(sum of all matrices' costs / ranks, largest single cost).
  double imbalance = 1;
  /// Cost of the ranks of all replicas and tensor-parallel parts together / cost of computing every matrix
  /// once.
  double redundancy = 1;
  double seconds = 0;  // of the slowest rank, by PlanCosts
  uint64_t fingerprint = 0;

  int team() const { return cells * copies; }
};

}  // namespace sherd
