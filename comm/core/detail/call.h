// One rank's side of a collective, as its peers see it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sherd/comm/core/communicator.h>

namespace sherd::comm {

/// Description of a call. Part of the queued operation, which also keeps the tensors' memory alive. Fields
/// that an operation does not use keep their defaults, so that agreement is plain comparison.
struct Call {
  const char* op = "";
  int64_t sequence = 0;  // of this operation on its communicator, from 1
  DType dtype = DType::u8;
  int64_t elements = 0;           // of the whole collective, equal on every rank where the operation fixes it
  std::vector<int64_t> counts{};  // per rank, equal on every rank
  int root = -1;
  Purpose purpose{};
  ReduceOp reduce = ReduceOp::sum;
  std::vector<int64_t> send_counts{}, recv_counts{};  // all_to_all_v only: this rank's; must agree crosswise
  Tensor send{}, recv{};
  int64_t flight = 0;  // its number in this rank's flight recorder; not compared
};

const char* name_of(ReduceOp op);

/// "reduce_scatter #4 (sum, f32, 16 elements, 64 bytes) for the gradients of unit 'blocks.1'"
std::string describe(const Call& call);

/// A rank's arguments of split().
struct SplitWish {
  int color = 0, key = 0;
};
/// Returns the indices of the wishes (by rank) for this color, ordered by (key, rank).
std::vector<int> split_group(const std::vector<SplitWish>& wishes, int color);

/// "split(color 0, key 1) for export_weights()"
std::string split_text(int color, int key, const Purpose& purpose);

/// Returns why the calls of a group's ranks do not agree; empty when they do.
std::string disagreement(const std::vector<const Call*>& calls, const std::vector<int>& world_ranks);
/// Returns why a send and a receive (which is at `where`) do not agree; empty when they do.
std::string message_disagreement(const std::string& where, const Call& mine, const Call& theirs);

}  // namespace sherd::comm
