#include <sherd/fsdp/tensor_shard.h>

#include <algorithm>

namespace sherd {
namespace {

// Global row of a local row of a parameter cut along dimension 0, and how many rows from there stay
// neighbours.
struct RowPlace {
  int64_t row, count;
};

RowPlace place_of(int64_t row, int64_t rows, const RowBlocks& blocks, const TensorShard& shard) {
  const bool stacked = !blocks.empty() && std::all_of(blocks.begin(), blocks.end(),
                                                      [](const RowBlock& b) { return b.count == 1; });
  if (!stacked) return {shard.index * rows + row, rows - row};
  // Blocks before this one are whole in the global parameter, parts times as high as here.
  for (auto& b : blocks) {
    if (row < b.begin || row >= b.begin + b.size) continue;
    return {b.begin * shard.parts + shard.index * b.size + (row - b.begin), b.begin + b.size - row};
  }
  return {shard.index * rows + row, rows - row};
}

}  // namespace

Shape global_shape(const Shape& local, const TensorShard& shard) {
  Shape s = local;
  s[static_cast<size_t>(shard.dim)] *= shard.parts;
  return s;
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
  const int64_t begin = range.begin.value, end = range.end.value;
  if (shard.dim == 0) {
    const int64_t width = row_size(local);
    for (int64_t at = begin; at < end;) {
      const int64_t row = at / width, in_row = at % width;
      const RowPlace place = place_of(row, row_count(local), local.size() == 2 ? blocks : RowBlocks{}, shard);
      const int64_t count = std::min(end - at, place.count * width - in_row);
      add(at, place.row * width + in_row, count);
      at += count;
    }
    return runs;
  }
  // Everything from dimension `dim` inwards is contiguous in both; the pieces are `parts` times as far apart.
  int64_t inner = 1;
  for (size_t d = static_cast<size_t>(shard.dim); d < local.size(); ++d) inner *= local[d];
  for (int64_t at = begin; at < end;) {
    const int64_t outer = at / inner, in = at % inner, count = std::min(end - at, inner - in);
    add(at, (outer * shard.parts + shard.index) * inner + in, count);
    at += count;
  }
  return runs;
}

std::vector<Box> global_boxes(const Shape& local, const RowBlocks& blocks, const TensorShard& shard,
                              ParamRange range) {
  std::vector<Box> boxes;
  // Box by box of the local tensor: each is a rectangle, and stays one (per row block) in the global tensor.
  for (Box box : boxes_of(local, range)) {
    const size_t d = static_cast<size_t>(shard.dim);
    if (shard.dim != 0) {
      box.offset[d] += shard.index * local[d];
      boxes.push_back(box);
      continue;
    }
    const int64_t first = box.offset[0], end = first + box.size[0];
    for (int64_t row = first; row < end;) {
      const RowPlace place = place_of(row, row_count(local), local.size() == 2 ? blocks : RowBlocks{}, shard);
      Box piece = box;
      piece.offset[0] = place.row;
      piece.size[0] = std::min(end - row, place.count);
      row += piece.size[0];
      boxes.push_back(std::move(piece));
    }
  }
  return boxes;
}

}  // namespace sherd
