// Muon: momentum, orthogonalized, for matrices.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include <sherd/fsdp/group.h>
#include <sherd/kernels/ops.h>
#include <sherd/optim/state.h>

namespace sherd {

struct MuonOptions {
  float momentum = 0.95f;
  bool nesterov = true;
  /// (a, b, c) of each Newton-Schulz step; default five of Jordan's quintic.
  std::vector<ops::Coefficients> steps = std::vector<ops::Coefficients>(5, {3.4445f, -4.7750f, 2.0315f});
  float eps = 1e-7f;
  /// The update of a logical block is scaled by factor * sqrt(max(rows, cols)) (Moonlight: matches AdamW's
  /// RMS).
  double scale_factor = 0.2;
};

/// Muon (Jordan et al. 2024) in its plain `gather` mode. Per step: momentum and Nesterov on the local rows
/// (EMA form, as torch.optim.Muon); one all-gather-v per group brings all row shards to every rank (padding
/// is never sent); every rank orthogonalizes the whole matrix, block by block (Parameter::row_blocks); each
/// keeps its own interval:
///   w *= 1 - lr * weight_decay;  w -= lr * scale * O.
/// Momentum is sharded exactly like the parameter. The result does not depend on how the matrix was sharded,
/// in bits: every rank runs one kernel on the same whole matrix.
class Muon {
 public:
  struct Item {
    Parameter param;
    double weight_decay = 0;
  };
  /// Collective: makes a communicator for each set of mesh dimensions that shards a group.
  /// @throws ShapeMismatch naming every item that is not a matrix, NotSupported every one that is a piece of
  /// a tensor-parallel one.
  Muon(Device& device, std::vector<Item> items, MuonOptions options);
  /// Queues the update on `stream`, which all ranks' Muon collectives use.
  void step(Stream& stream, double lr);
  /// Appends momentum_buffer of every parameter.
  void collect(std::vector<StateTensor>& out) const;

 private:
  struct Slot {
    Item item;
    Tensor momentum;
    int64_t packed_begin = 0;  // of the local piece in the packed message
  };
  /// Matrices of one ParamGroup: one message.
  struct Batch {
    ParamGroup* group = nullptr;
    std::shared_ptr<Communicator> comm;  // over the dimensions that shard the group
    std::vector<Slot> slots;
    std::vector<int64_t> counts;  // packed elements of each rank
    int64_t total = 0;
  };
  void step_batch(Stream& stream, Batch& batch, double lr);
  void update(Stream& stream, const Slot& slot, const Tensor& whole, double lr);

  Device& device_;
  MuonOptions options_;
  std::vector<Batch> batches_;
};

}  // namespace sherd
