#include <sherd/checkpoint/detail/owned_boxes.h>

namespace sherd {

std::vector<Box> boxes_of(const OwnedState& state) {
  std::vector<Box> boxes;
  if (state.param.shape().size() != 3) {
    if (!state.matrices.empty()) boxes.push_back({Shape(state.shape.size(), 0), state.shape});
    return boxes;
  }
  for (const int64_t i : state.matrices) {
    if (!boxes.empty() && boxes.back().offset[0] + boxes.back().size[0] == i) {
      ++boxes.back().size[0];
      continue;
    }
    boxes.push_back({Shape(state.shape.size(), 0), state.shape});
    boxes.back().offset[0] = i;
    boxes.back().size[0] = 1;
  }
  return boxes;
}

}  // namespace sherd
