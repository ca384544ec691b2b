// Optimizer state for other components: by parameter and key, sharded exactly like the parameter.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/parameter.h>
#include <sherd/kernels/quantize/quantize.h>

namespace sherd {

/// Elementwise state of a parameter's local piece in its rest form: values in f32 or bf16, or codes of 8 bits and their scales.
struct RestState {
  RestState() = default;
  RestState(Tensor t) : values(std::move(t)) {}  // NOLINT(google-explicit-constructor): in 16 bits or more
  RestState(Tensor codes, Tensor s, StateCode c, int64_t b)
      : values(std::move(codes)), scales(std::move(s)), code(c), block(b) {}

  Tensor values = {};
  Tensor scales = {};  // f32, one for each block; undefined for values
  StateCode code = StateCode::linear;
  int64_t block = 0;  // elements that share a scale (state_block())

  bool quantized() const { return scales.defined(); }
  /// Returns the dtype in which an update computes with it.
  DType used_dtype() const { return quantized() ? DType::f32 : values.dtype(); }
};

/// Returns the blocks of an interval that begins and ends with some.
inline ParamRange blocks_of(ParamRange range, int64_t block) {
  return {ParamIndex(range.begin.value / block), ParamIndex(range.end.value / block)};
}

struct StateTensor {
  Parameter param = {};
  /// PyTorch's keys: "exp_avg", "exp_avg_sq" (AdamW) or "momentum_buffer" (Muon); of another optimizer any
  /// word without a dot. Files name the state by it, after the parameter's name.
  std::string key = {};
  /// Flat piece at Parameter::shard_range(): f32, bf16, or codes of 8 bits (i8, f8_e4m3).
  Tensor local = {};
  /// Starts from the weights rather than from zero: an average of them.
  bool averages_weights = false;
  /// Of codes: f32, one for each block of `local` (RestState).
  Tensor scales = {};
  StateCode code = StateCode::linear;
  int64_t block = 0;

  RestState rest() const { return {local, scales, code, block}; }
};
inline StateTensor state_tensor(Parameter param, std::string key, const RestState& state) {
  return {std::move(param), std::move(key), state.values, false, state.scales, state.code, state.block};
}

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
