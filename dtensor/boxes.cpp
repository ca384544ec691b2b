#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/dtensor/index.h>

namespace sherd {

std::vector<Box> boxes_of(const Shape& shape_or_scalar, ParamRange range) {
  const Shape shape = shape_or_scalar.empty() ? Shape{1} : shape_or_scalar;
  const int64_t numel = numel_of(shape);
  if (range.begin.value < 0 || range.end.value > numel || range.end < range.begin)
    throw InvalidArgument(fmt::format("boxes_of: interval [{}, {}) of a tensor of shape {} with {} elements",
                                      range.begin.value, range.end.value, to_string(shape), numel));
  std::vector<Box> boxes;
  if (range.empty()) return boxes;

  const size_t dims = shape.size();
  Shape stride(dims, 1);
  for (size_t d = dims - 1; d > 0; --d) stride[d - 1] = stride[d] * shape[d];

  // Take the thickest slabs that start here and stay inside: outwards first, then inwards again, each
  // dimension at most once on either way.
  for (int64_t at = range.begin.value; at < range.end.value;) {
    const int64_t left = range.end.value - at;
    size_t d = 0;
    while (at % stride[d] != 0 || stride[d] > left) ++d;

    Box box{Shape(dims), shape};
    for (size_t k = 0; k < dims; ++k) box.offset[k] = at / stride[k] % shape[k];
    for (size_t k = 0; k < d; ++k) box.size[k] = 1;
    box.size[d] = std::min(left / stride[d], shape[d] - box.offset[d]);
    at += box.size[d] * stride[d];
    boxes.push_back(std::move(box));
  }
  return boxes;
}

}  // namespace sherd
