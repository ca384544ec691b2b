#include <sherd/optim/whole/logical_matrix.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace sherd {
namespace {

/// Returns whether tensor parallelism assigns the blocks to ranks whole: they are marked so, and each is one run.
bool assigned_whole(const RowBlocks& blocks) {
  return std::ranges::any_of(blocks, &RowBlock::dealt) &&
         std::ranges::all_of(blocks, [](const RowBlock& b) { return b.count == 1 && b.stride == 0; });
}

}  // namespace

int64_t LogicalMatrix::elements_on(int cell) const {
  int64_t count = 0;
  const ParamRange piece = layout->piece(ParamId(param), RankId(cell));
  if (place.count == 1) {
    const int64_t first = place.begin * cols;
    return std::max<int64_t>(0,
                             std::min(first + numel(), piece.end.value) - std::max(first, piece.begin.value));
  }
  for_runs(piece, [&](int64_t, int64_t, int64_t n) { count += n; });
  return count;
}

LogicalMatrix::Cells LogicalMatrix::cells() const {
  if (numel() == 0) return {};
  const int64_t lo = place.begin * cols;
  const int64_t hi = (place.begin + (place.count - 1) * place.stride + place.size) * cols;
  // Pieces of one parameter follow each other in the order of the cells.
  const auto first_where = [&](auto passes) {
    int a = 0, b = layout->world();
    while (a < b) {
      const int mid = a + (b - a) / 2;
      passes(layout->piece(ParamId(param), RankId(mid))) ? b = mid : a = mid + 1;
    }
    return a;
  };
  Cells c;
  c.first = first_where([&](ParamRange p) { return p.end.value > lo; });
  c.last = first_where([&](ParamRange p) { return p.begin.value >= hi; }) - 1;
  // Blocks of several runs have gaps: the outermost cells may hold rows of other blocks only.
  while (c.first < c.last && elements_on(c.first) == 0) ++c.first;
  while (c.last > c.first && elements_on(c.last) == 0) --c.last;
  return c;
}

std::vector<LogicalMatrix> logical_matrices(const std::string& name, const Shape& shape,
                                            const RowBlocks& blocks, const std::optional<TensorShard>& tensor,
                                            const ShardLayout& layout, int param) {
  const bool stack = shape.size() == 3;
  const int64_t count = stack ? shape[0] : 1, rows = shape[shape.size() - 2], cols = shape.back();
  const RowBlocks in_matrix = blocks.empty() ? RowBlocks{{"", 0, rows, 0, 1}} : blocks;
  // Heads that tensor parallelism distributes whole are matrices, not pieces of one.
  const bool heads = assigned_whole(blocks);
  const bool dealt = heads && tensor && tensor->dim == (stack ? 1 : 0);
  // Matrices of a distributed stack keep their index in the whole stack, heads that among the heads of all ranks.
  const bool distributed = stack && tensor && tensor->dim == 0;
  const int64_t first = distributed ? tensor->index * count : 0;
  const int64_t whole_count = distributed ? tensor->parts * count : count;
  std::map<int64_t, int64_t> of_rows;  // heads of this rank by their rows
  if (heads)
    for (const RowBlock& b : blocks) ++of_rows[b.rows()];
  std::vector<LogicalMatrix> all;
  for (int64_t i = 0; i < count; ++i) {
    std::map<int64_t, int64_t> seen;
    for (const RowBlock& b : in_matrix) {
      LogicalMatrix m;
      m.name = name;
      const std::string block = dealt && tensor->parts > 1
                                    ? fmt::format("{} of {} {}", b.name, tensor->mesh_dim, tensor->index)
                                    : b.name;
      m.block = stack ? "[" + std::to_string(first + i) + "]" + (block.empty() ? "" : "." + block) : block;
      m.rows = b.rows();
      m.cols = cols;
      m.place = b;
      m.place.begin += i * rows;
      m.layout = &layout;
      m.param = param;
      if (tensor && tensor->parts > 1 && !dealt) {
        m.tensor_dim = tensor->dim - (stack ? 1 : 0);
        m.tensor_parts = m.tensor_dim >= 0 ? tensor->parts : 1;
      }
      if (heads) {
        const int64_t here = of_rows[b.rows()], each = dealt ? tensor->parts * here : here;
        m.stack = fmt::format("{}x{}", m.whole_rows(), m.whole_cols());
        m.stack_size = whole_count * each;
        m.stack_index = (first + i) * each + (dealt ? tensor->index * here : 0) + seen[b.rows()]++;
      } else {
        m.stack = b.name;
        m.stack_size = stack ? whole_count : 0;
        m.stack_index = first + i;
      }
      all.push_back(std::move(m));
    }
  }
  return all;
}

}  // namespace sherd
