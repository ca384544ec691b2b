#include <sherd/checkpoint/detail/owned_boxes.h>

namespace sherd {

std::vector<Box> boxes_of(const OwnedState& state) {
  if (state.matrices.empty()) return {};
  const Box all{Shape(state.shape.size(), 0), state.shape};
  if (numel_of(state.shape) == state.local.numel()) return {all};  // a single matrix, or all of a stack
  std::vector<Box> boxes;
  for (const int64_t i : state.matrices) {
    if (!boxes.empty() && boxes.back().offset[0] + boxes.back().size[0] == i) {
      ++boxes.back().size[0];
      continue;
    }
    boxes.push_back(all);
    boxes.back().offset[0] = i;
    boxes.back().size[0] = 1;
  }
  return boxes;
}

}  // namespace sherd
