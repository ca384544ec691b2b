#include <sherd/fsdp/row_blocks.h>

#include <fmt/format.h>

#include <sherd/base/error.h>

namespace sherd {
namespace {

std::string name_at(const std::vector<std::string>& names, size_t i) {
  return i < names.size() ? names[i] : std::to_string(i);
}

}  // namespace

RowBlocks stacked_blocks(const std::vector<int64_t>& rows, const std::vector<std::string>& names) {
  RowBlocks blocks;
  int64_t begin = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    blocks.push_back({name_at(names, i), begin, rows[i], 0, 1});
    begin += rows[i];
  }
  return blocks;
}

RowBlocks interleaved_blocks(int64_t rows, int ways, const std::vector<std::string>& names) {
  if (ways < 1 || rows % ways != 0)
    throw InvalidArgument(fmt::format("interleaved_blocks: {} rows do not divide by {}", rows, ways));
  RowBlocks blocks;
  for (int i = 0; i < ways; ++i)
    blocks.push_back({name_at(names, static_cast<size_t>(i)), i, 1, ways, rows / ways});
  return blocks;
}

RowBlocks head_blocks(int64_t heads, int64_t head_dim) {
  RowBlocks blocks;
  for (int64_t h = 0; h < heads; ++h)
    blocks.push_back({"head" + std::to_string(h), h * head_dim, head_dim, 0, 1, true});
  return blocks;
}

RowBlocks grouped_query_blocks(int64_t groups, int64_t queries_per_group, int64_t head_dim, bool gated) {
  const int64_t q = queries_per_group * head_dim, stride = (gated ? 2 * q : q) + 2 * head_dim;
  RowBlocks blocks = {{"q", 0, q, stride, groups}};
  if (gated) blocks.push_back({"gate", q, q, stride, groups});
  const int64_t k = gated ? 2 * q : q;
  blocks.push_back({"k", k, head_dim, stride, groups});
  blocks.push_back({"v", k + head_dim, head_dim, stride, groups});
  return blocks;
}

// Counts how often each row is covered, which detects gaps and overlaps of strided blocks.
std::string check_blocks(const RowBlocks& blocks, int64_t rows) {
  std::vector<int> seen(static_cast<size_t>(rows), 0);
  for (auto& b : blocks) {
    const bool sane = b.begin >= 0 && b.size >= 0 && b.count >= 1 && b.stride >= 0;
    if (!sane) return fmt::format("'{}' have a negative size or no run", b.name);
    const int64_t end = b.begin + (b.count - 1) * b.stride + b.size;
    if (end > rows) return fmt::format("'{}' end at row {} of {}", b.name, end, rows);
    for (int64_t i = 0; i < b.rows(); ++i) ++seen[static_cast<size_t>(b.row(i))];
  }
  for (size_t r = 0; r < seen.size(); ++r)
    if (seen[r] != 1) return fmt::format("cover row {} {} times instead of once", r, seen[r]);
  return "";
}

}  // namespace sherd
