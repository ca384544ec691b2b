// Optimizer state for other components: by parameter and key, sharded exactly like the parameter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sherd/fsdp/parameter.h>

namespace sherd {

struct StateTensor {
  Parameter param = {};
  /// PyTorch's keys: "exp_avg", "exp_avg_sq" (AdamW) or "momentum_buffer" (Muon); of another optimizer any
  /// word without a dot. Files name the state by it, after the parameter's name.
  std::string key = {};
  /// Flat piece at Parameter::shard_range(), f32 or bf16.
  Tensor local = {};
  /// Starts from the weights rather than from zero: an average of them.
  bool averages_weights = false;
};

/// Count of updates that an optimizer keeps for a parameter, the same on every rank: "step" of AdamW. Skipped
/// steps do not count; only the device knows of them when a step is issued.
struct StateCounter {
  Parameter param = {};
  std::string key = {};
  /// f32 [1], an integer; shared with the optimizer: writing it changes the optimizer.
  Tensor value = {};
};

/// State of whole matrices of a parameter, stored on the ranks that compute them: one tensor for all matrices of the
/// parameter that have the same row block, or one shape if tensor parallelism assigns its blocks whole (heads). The list,
/// its order, keys and shapes are the same on every rank.
struct OwnedState {
  Parameter param = {};
  /// The rule's key; "KEY[BLOCK]" of a row block with a name, "KEY[64x512]" of heads with that shape.
  std::string key = {};
  /// Shape over all ranks: [count, ...] for a stack of `count` matrices or as many heads, else that of the
  /// one matrix.
  Shape shape = {};
  /// Indices along `count` of the matrices on this rank, ascending; {0} or empty for one matrix.
  std::vector<int64_t> matrices = {};
  /// Flat, f32 or bf16: the state of `matrices`, one after the other. Shared with the optimizer.
  Tensor local = {};
  /// Mesh dimensions along which other ranks store the same, in the mesh's order.
  std::vector<std::string> repeated = {};
  /// This rank saves `local`, of the ranks that store the same.
  bool saves = false;
};

}  // namespace sherd
