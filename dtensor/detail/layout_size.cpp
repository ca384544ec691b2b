#include <sherd/dtensor/detail/layout_size.h>

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include <sherd/base/error.h>

namespace sherd {
namespace {

constexpr Wide kMost = std::numeric_limits<int64_t>::max();

[[noreturn]] void refuse(const std::vector<LayoutParam>& params, int world, int64_t align) {
  throw InvalidArgument(
      fmt::format("ShardLayout::make: {} need more elements than 64 bits count; use fewer ranks, a smaller "
                  "align, or smaller parameters",
                  sizes_text(params, world, align)));
}

}  // namespace

Wide wide_numel(const Shape& shape) {
  constexpr Wide kStop = Wide{1} << 64;
  Wide product = 1;
  for (int64_t d : shape) product = std::min<Wide>(product * std::max<int64_t>(d, 1), kStop);
  return product;
}

Wide wide_numel(const std::vector<LayoutParam>& params) {
  Wide total = 0;
  for (const auto& p : params) total += wide_numel(p.shape);
  return total;
}

std::string sizes_text(const std::vector<LayoutParam>& params, int world, int64_t align) {
  const Wide total = wide_numel(params);
  const std::string elements = total > kMost ? "more than 2^63 - 1" : fmt::format("{}", int64_t(total));
  return fmt::format("{} parameters ({} elements) on {} ranks in slices that are a multiple of {}",
                     params.size(), elements, world, align);
}

void check_sizes(const std::vector<LayoutParam>& params, int world, const LayoutOptions& options) {
  const Wide total = wide_numel(params), align = options.align;
  Wide needed = 0;
  if (options.policy == LayoutPolicy::ragged) {
    const Wide slice = ((total + world - 1) / world + align - 1) / align * align;
    needed = 16 * std::max(world * slice, 2 * total);  // the search scans a few times the largest slice
  } else if (options.policy == LayoutPolicy::even_rows) {
    for (const auto& p : params) {
      const Wide rows = row_count(p.shape), width = wide_numel(p.shape) / std::max<Wide>(rows, 1);
      needed += (rows + world - 1) / world * width;
    }
    needed = world * (needed + align);
  } else {  // the slice of one rank that has everything
    needed = total + kPackAlign * Wide(params.size() + 1) + 2 * shard_divisor(world) * align;
  }
  if (std::max(needed, total) > kMost) refuse(params, world, options.align);
}

void check_buffer(const std::vector<LayoutParam>& params, int world, const LayoutOptions& options,
                  int64_t slice) {
  if (Wide{slice} * world > kMost) refuse(params, world, options.align);
}

}  // namespace sherd
