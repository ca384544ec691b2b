#include <sherd/nn/kernels/strided/view.h>

#include <algorithm>
#include <string>

namespace sherd::ops {

StridedView dense(const Tensor& t) {
  StridedView v{t, 0, t.shape(), t.shape()};
  int64_t stride = 1;
  for (size_t d = v.sizes.size(); d-- > 0; stride *= v.sizes[d]) v.strides[d] = stride;
  return v;
}

StridedView broadcast(const StridedView& v, const Shape& shape) {
  const auto refuse = [&] {
    return ShapeMismatch("broadcast: " + to_string(v.sizes) + " does not broadcast to " + to_string(shape) +
                         "; sizes must be equal or 1, from the last dimension on");
  };
  if (v.sizes.size() > shape.size()) throw refuse();
  StridedView wide{v.tensor, v.offset, shape, Shape(shape.size(), 0)};
  const size_t missing = shape.size() - v.sizes.size();
  for (size_t d = 0; d < v.sizes.size(); ++d) {
    if (v.sizes[d] == shape[missing + d])
      wide.strides[missing + d] = v.strides[d];
    else if (v.sizes[d] != 1)
      throw refuse();
  }
  return wide;
}

StridedView permuted(const StridedView& v, const std::vector<int64_t>& dims) {
  StridedView other{v.tensor, v.offset, {}, {}};
  for (const int64_t d : dims) {
    other.sizes.push_back(v.sizes.at(static_cast<size_t>(d)));
    other.strides.push_back(v.strides[static_cast<size_t>(d)]);
  }
  return other;
}

StridedView sliced(const StridedView& v, int64_t dim, int64_t begin, int64_t end, int64_t step) {
  StridedView part = v;
  const auto d = static_cast<size_t>(dim);
  part.sizes.at(d) = (end - begin + step - 1) / step;
  if (part.sizes[d] > 0) part.offset += begin * v.strides[d];
  part.strides[d] *= step;
  return part;
}

Shape broadcast_shape(const Shape& a, const Shape& b) {
  Shape both(std::max(a.size(), b.size()));
  const auto at = [&](const Shape& shape, size_t d) {
    const size_t missing = both.size() - shape.size();
    return d < missing ? int64_t{1} : shape[d - missing];
  };
  for (size_t d = 0; d < both.size(); ++d) {
    const int64_t x = at(a, d), y = at(b, d);
    if (x != y && x != 1 && y != 1)
      throw ShapeMismatch("the shapes " + to_string(a) + " and " + to_string(b) +
                          " do not broadcast: sizes must be equal or 1, from the last dimension on");
    both[d] = x == 1 ? y : x;
  }
  return both;
}

}  // namespace sherd::ops
