#include <sherd/fsdp/tensor_shard.h>

#include <algorithm>

namespace sherd {
namespace {

// Global place of a local coordinate along the cut dimension, and the number of coordinates from there on
// that stay neighbours.
struct Position {
  int64_t at, count;
};

// The map of local to global coordinates along the cut dimension.
class Cut {
 public:
  Cut(const Shape& local, const RowBlocks& blocks, const TensorShard& shard)
      : blocks_(blocks), shard_(shard), size_(local[static_cast<size_t>(shard.dim)]) {
    // Only stacked blocks are cut block by block; a dealt or interleaved block is cut in one range
    // (TensorShard).
    const int row_dim = local.size() == 3 ? 1 : 0;
    const bool stacked = std::all_of(blocks.begin(), blocks.end(), [](const RowBlock& b) {
      return b.count == 1 && b.stride == 0 && !b.dealt;
    });
    by_block_ = shard.dim == row_dim && stacked && !blocks.empty();
  }

  Position place_of(int64_t i) const {
    if (by_block_) {
      // Blocks before this one are whole in the global parameter, parts times as high as here.
      for (auto& b : blocks_)
        if (b.begin <= i && i < b.begin + b.size)
          return {b.begin * shard_.parts + shard_.index * b.size + (i - b.begin), b.begin + b.size - i};
    }
    return {shard_.index * size_ + i, size_ - i};
  }

 private:
  const RowBlocks& blocks_;
  const TensorShard& shard_;
  int64_t size_;
  bool by_block_;
};

// Appends a rectangle of the local tensor as rectangles of the global one, in local order.
void append_boxes(std::vector<Box>& boxes, const Box& local, const Cut& cut, size_t dim) {
  const int64_t begin = local.offset[dim], end = begin + local.size[dim];
  if (cut.place_of(begin).count < end - begin) {
    // Several pieces: they follow each other in local order only if nothing outside of `dim` varies.
    for (size_t k = 0; k < dim; ++k) {
      if (local.size[k] == 1) continue;
      for (int64_t i = 0; i < local.size[k]; ++i) {
        Box slice = local;
        slice.offset[k] += i;
        slice.size[k] = 1;
        append_boxes(boxes, slice, cut, dim);
      }
      return;
    }
  }
  for (int64_t i = begin; i < end;) {
    const Position place = cut.place_of(i);
    Box piece = local;
    piece.offset[dim] = place.at;
    piece.size[dim] = std::min(end - i, place.count);
    i += piece.size[dim];
    boxes.push_back(std::move(piece));
  }
}

}  // namespace

Shape global_shape(const Shape& local, const TensorShard& shard) {
  Shape s = local;
  int64_t& size = s[static_cast<size_t>(shard.dim)];
  size = shard.size > 0 ? shard.size : size * shard.parts;
  return s;
}

int64_t held_elements(const Shape& local, const TensorShard& shard) {
  const int64_t all = numel_of(local);
  if (shard.size == 0 || all == 0) return all;
  // Uneven cuts are of dimension 0 only, so the held elements are a prefix.
  const int64_t rows = local[0], before = shard.index * rows;
  return all / rows * std::clamp<int64_t>(shard.size - before, 0, rows);
}

ParamRange clipped(ParamRange range, int64_t end) {
  return {ParamIndex(std::min(range.begin.value, end)), ParamIndex(std::min(range.end.value, end))};
}

std::vector<GlobalRun> global_runs(const Shape& local, const RowBlocks& blocks, const TensorShard& shard,
                                   ParamRange range) {
  std::vector<GlobalRun> runs;
  const auto add = [&](int64_t from, int64_t to, int64_t count) {
    if (!runs.empty()) {
      GlobalRun& last = runs.back();
      if (last.local.value + last.count == from && last.global.value + last.count == to) {
        last.count += count;
        return;
      }
    }
    runs.push_back({ParamIndex(from), ParamIndex(to), count});
  };
  const Cut cut(local, blocks, shard);
  const size_t dim = static_cast<size_t>(shard.dim);
  const int64_t size = local[dim];
  int64_t inner = 1;  // elements that one step along the cut dimension skips, here and there
  for (size_t d = dim + 1; d < local.size(); ++d) inner *= local[d];
  for (int64_t at = range.begin.value; at < range.end.value;) {
    // at = (outer * size + i) * inner + in: i is the local coordinate along the cut dimension.
    const int64_t outer = at / (inner * size), i = at / inner % size, in = at % inner;
    const Position place = cut.place_of(i);
    const int64_t count = std::min(range.end.value - at, place.count * inner - in);
    add(at, (outer * size * shard.parts + place.at) * inner + in, count);
    at += count;
  }
  return runs;
}

std::vector<Box> global_boxes(const Shape& local, const RowBlocks& blocks, const TensorShard& shard,
                              ParamRange range) {
  const Cut cut(local, blocks, shard);
  std::vector<Box> boxes;
  for (const Box& box : boxes_of(local, range)) append_boxes(boxes, box, cut, static_cast<size_t>(shard.dim));
  return boxes;
}

}  // namespace sherd
