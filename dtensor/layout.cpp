#include <sherd/dtensor/layout.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>
#include <xxhash.h>

#include <sherd/base/error.h>
#include <sherd/dtensor/detail/layout_size.h>
#include <sherd/dtensor/detail/ragged_placement.h>

namespace sherd {
namespace {

void check(const std::vector<LayoutParam>& params, int world, const LayoutOptions& options) {
  std::string bad;
  if (world < 1) bad += fmt::format("\n  world is {}; it must be at least 1", world);
  if (params.empty()) bad += "\n  the list of parameters is empty; pass at least one";
  if (options.align < 1) bad += fmt::format("\n  align is {}; it must be at least 1", options.align);
  if (!(options.padding_budget >= 0 && options.padding_budget <= 1))
    bad += fmt::format("\n  padding_budget is {}; it must lie in [0, 1]", options.padding_budget);
  for (const auto& p : params) bad += complaints_about(p);
  const auto& carried = options.carried_cost;
  if (!carried.empty() && static_cast<int64_t>(carried.size()) != world)
    bad += fmt::format("\n  carried_cost has {} entries; it must have one for each of the {} ranks, or none",
                       carried.size(), world);
  if (!std::all_of(carried.begin(), carried.end(), [](double c) { return c >= 0 && std::isfinite(c); }))
    bad += "\n  carried_cost has an entry that is negative or not finite";
  if (!bad.empty()) throw InvalidArgument("ShardLayout::make:" + bad);
  check_sizes(params, world, options);
}

}  // namespace

ShardLayout ShardLayout::make(std::vector<LayoutParam> params, int world, const LayoutOptions& given) {
  LayoutOptions options = given;
  for (const auto& p : params)
    if (p.granule > 1 && options.align > 0 &&
        options.align <= std::numeric_limits<int64_t>::max() / p.granule)
      options.align = std::lcm(options.align, p.granule);
  check(params, world, options);
  ShardLayout l;
  l.params_ = std::move(params);
  l.options_ = options;
  l.world_ = world;
  int64_t total = 0;
  for (const auto& p : l.params_) total += numel_of(p.shape);

  if (options.policy == LayoutPolicy::ragged) {
    RaggedPlacement placed = place_ragged(l.params_, world, l.options_);
    l.slice_ = placed.slice;
    l.full_begin_ = std::move(placed.begin);
    l.full_elements_ = l.buffer_elements();
  } else if (options.policy == LayoutPolicy::whole_param) {
    l.place_whole();
  } else {
    l.place_even_rows();
  }
  l.padding_ = l.buffer_elements() - total;
  l.find_cut_rows();
  return l;
}

void ShardLayout::place_whole() {
  std::vector<PackItem> items;
  for (const auto& p : params_) items.push_back({numel_of(p.shape), packing_cost(p)});
  std::vector<double> carried = options_.carried_cost;
  carried.resize(static_cast<size_t>(world_));
  std::vector<int> rank(carried.size());  // of each shard that the rule sees
  std::iota(rank.begin(), rank.end(), 0);
  if (options_.order_by_carried_cost)
    std::stable_sort(rank.begin(), rank.end(), [&](int a, int b) { return carried[a] < carried[b]; });
  std::vector<double> cost;
  for (int r : rank) cost.push_back(carried[r]);
  const Packed packed = pack(items, world_, options_.packing, cost);
  rank_cost_.resize(cost.size());
  for (size_t shard = 0; shard < cost.size(); ++shard) rank_cost_[rank[shard]] = cost[shard];
  const int64_t unit = std::lcm(shard_divisor(world_), options_.align);
  slice_ = (packed.slice + unit - 1) / unit * unit;
  check_buffer(params_, world_, options_, slice_);
  for (size_t i = 0; i < items.size(); ++i)
    full_begin_.push_back(rank[packed.rank[i]] * slice_ + packed.offset[i]);
  full_elements_ = buffer_elements();
}

void ShardLayout::place_even_rows() {
  int64_t at = 0;
  for (const auto& p : params_) {
    const int64_t rows = (row_count(p.shape) + world_ - 1) / world_;
    full_begin_.push_back(full_elements_);
    full_elements_ += numel_of(p.shape);
    chunk_rows_.push_back(rows);
    chunk_begin_.push_back(at);
    at += rows * row_size(p.shape);
  }
  slice_ = (std::max<int64_t>(at, 1) + options_.align - 1) / options_.align * options_.align;
}

void ShardLayout::find_cut_rows() {
  if (options_.policy != LayoutPolicy::ragged) return;
  for (int p = 0; p < static_cast<int>(params_.size()); ++p) {
    if (params_[p].cut != CutClass::row) continue;
    const FullRange full = full_range(ParamId(p));
    const int64_t width = row_size(params_[p].shape);
    for (int64_t r = full.begin.value / slice_ + 1; r * slice_ < full.end.value; ++r) {
      const ParamIndex at(r * slice_ - full.begin.value);
      if (at.value % width != 0) cut_rows_.push_back({p, static_cast<int>(r), at});
    }
  }
}

FullRange ShardLayout::full_range(ParamId p) const {
  const FullIndex begin(full_begin_.at(p.index()));
  return {begin, begin + numel_of(params_[p.index()].shape)};
}

ParamRange ShardLayout::piece(ParamId p, RankId r) const {
  const Shape& shape = params_.at(p.index()).shape;
  const int64_t numel = numel_of(shape);
  // All policies give rank r the r-th of equal steps, counted from some origin and cut off at the ends.
  const int64_t step = zero_copy() ? slice_ : chunk_rows_[p.index()] * row_size(shape);
  const int64_t origin = zero_copy() ? -full_begin_[p.index()] : 0;
  const auto clamped = [&](int64_t at) { return ParamIndex(std::clamp<int64_t>(at, 0, numel)); };
  return {clamped(origin + r.value * step), clamped(origin + (r.value + 1) * step)};
}

SliceIndex ShardLayout::local_begin(ParamId p, RankId r) const {
  if (!zero_copy()) return SliceIndex(chunk_begin_.at(p.index()));
  return SliceIndex(std::clamp<int64_t>(full_begin_.at(p.index()) - r.value * slice_, 0, slice_));
}

std::vector<Box> ShardLayout::boxes(ParamId p, RankId r) const {
  return boxes_of(params_.at(p.index()).shape, piece(p, r));
}

uint64_t ShardLayout::fingerprint() const {
  std::vector<uint64_t> words;
  const auto put = [&](auto v) { words.push_back(static_cast<uint64_t>(v)); };
  const auto put_all = [&](const std::vector<int64_t>& values) {
    put(values.size());
    for (int64_t v : values) put(v);
  };
  put(options_.policy);
  put(options_.align);
  put(std::bit_cast<uint64_t>(options_.padding_budget));
  put(options_.rotation);
  put(world_);
  put(slice_);
  put(full_elements_);
  put(padding_);
  put(params_.size());
  for (const auto& p : params_) {
    put(XXH64(p.name.data(), p.name.size(), 0));
    put(p.cut);
    if (p.granule > 1) put(p.granule);
    put_all(p.shape);
  }
  put_all(full_begin_);
  put_all(chunk_rows_);
  put_all(chunk_begin_);
  put(cut_rows_.size());
  for (const CutRow& c : cut_rows_) {
    put(c.param);
    put(c.rank);
    put(c.at.value);
  }
  if (options_.policy == LayoutPolicy::whole_param) {
    put(options_.packing);
    put(options_.order_by_carried_cost);
    for (double c : options_.carried_cost) put(std::bit_cast<uint64_t>(c));
    for (double c : rank_cost_) put(std::bit_cast<uint64_t>(c));
  }
  return XXH64(words.data(), words.size() * sizeof(uint64_t), 0);
}

std::string ShardLayout::describe() const {
  const int64_t total = buffer_elements() - padding_;
  std::string s =
      fmt::format("{} layout of {} parameters with {} elements over {} ranks\n",
                  to_string(LayoutChoice{options_.policy, options_.packing}), params_.size(), total, world_);
  s += fmt::format("slice {} elements, padding {} ({:.2f} %), {} rows cut\n", slice_, padding_,
                   total > 0 ? 100.0 * static_cast<double>(padding_) / static_cast<double>(total) : 0.0,
                   cut_rows_.size());
  for (size_t i = 0; i < cut_rows_.size(); ++i) {
    const CutRow& c = cut_rows_[i];
    const LayoutParam& p = params_[c.param];
    if (i == 0 || cut_rows_[i - 1].param != c.param)
      s += fmt::format("{}{} {} cut in rows (first rank behind the cut):", i ? "\n" : "", p.name,
                       to_string(p.shape));
    s += fmt::format(" {} ({})", c.at.value / row_size(p.shape), c.rank);
  }
  if (!cut_rows_.empty()) s += '\n';
  return s;
}

}  // namespace sherd
