// Boxes as runs of elements. Private to checkpoint/.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sherd/dtensor/index.h>

namespace sherd {

/// Elements between neighbours along each dimension, in row-major order. @pre at least one dimension
inline Shape strides_of(const Shape& size) {
  Shape stride(size.size(), 1);
  for (size_t d = size.size() - 1; d > 0; --d) stride[d - 1] = stride[d] * size[d];
  return stride;
}

/// Calls `run(from, to, count)` for every stretch of elements of `common` that is contiguous in both boxes
/// that hold it: `count` elements, number `from` on of the one, number `to` on of the other.
/// @pre at least one dimension, the same number in all; `common` is not empty
template <class Run>
void each_run(const Box& common, const Box& source, const Box& target, Run run) {
  const Shape source_stride = strides_of(source.size), target_stride = strides_of(target.size);
  int64_t from = 0, to = 0, count = 1;
  for (size_t d = 0; d < common.size.size(); ++d) {
    from += (common.offset[d] - source.offset[d]) * source_stride[d];
    to += (common.offset[d] - target.offset[d]) * target_stride[d];
  }
  // Dimensions from `inner` on are in the run: all but its outermost one are whole in both boxes.
  size_t inner = common.size.size();
  bool whole = true;
  while (inner > 0 && whole) {
    --inner;
    count *= common.size[inner];
    whole = common.size[inner] == source.size[inner] && common.size[inner] == target.size[inner];
  }
  Shape at(inner, 0);
  for (;;) {
    run(from, to, count);
    size_t d = inner;
    for (; d > 0; --d) {
      from += source_stride[d - 1];
      to += target_stride[d - 1];
      if (++at[d - 1] < common.size[d - 1]) break;
      from -= at[d - 1] * source_stride[d - 1];
      to -= at[d - 1] * target_stride[d - 1];
      at[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

}  // namespace sherd
