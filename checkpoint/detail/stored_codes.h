// State in 8 bits as files have it: codes and their scales. Private to checkpoint/.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/optim/state.h>

namespace sherd {

/// Returns what the name of scales adds to that of their codes.
inline const char* scale_suffix(StateCode code) {
  return code == StateCode::square_root ? "_root_scale" : "_scale";
}

/// Return a shape, or a box of whole blocks, of codes in blocks along the last dimension.
Shape in_blocks(Shape shape, int64_t block);
Box in_blocks(Box box, int64_t block);

/// Scales of a stored tensor of codes.
struct StoredScales {
  const CheckpointTensor* tensor = nullptr;  // null: it has none
  StateCode code = StateCode::linear;
  int64_t block = 0;
};

/// Returns the scales of `codes` among tensors that find(name) returns, or null.
template <class Find>
StoredScales scales_of(const CheckpointTensor& codes, Find find) {
  for (const StateCode code : {StateCode::linear, StateCode::floating, StateCode::square_root}) {
    if (dtype_of(code) != codes.dtype) continue;
    const CheckpointTensor* const scales = find(codes.name + scale_suffix(code));
    if (scales == nullptr || scales->dtype != DType::f32 || codes.shape.empty() || scales->shape.empty())
      continue;
    const int64_t block = codes.shape.back() / std::max<int64_t>(1, scales->shape.back());
    if (block > 0 && codes.shape.back() % block == 0 && scales->shape == in_blocks(codes.shape, block))
      return {scales, code, block};
  }
  return {};
}

/// Reads the elements of `boxes` as f32. values receives them, box after box.
void read_codes(CheckpointReader& reader, const CheckpointTensor& codes, const StoredScales& scales,
                std::span<const Box> boxes, std::vector<float>& values);

}  // namespace sherd
