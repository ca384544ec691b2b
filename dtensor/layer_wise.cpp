#include <sherd/dtensor/layer_wise.h>

#include <algorithm>
#include <functional>
#include <queue>

#include <fmt/format.h>
#include <xxhash.h>

#include <sherd/base/error.h>
#include <sherd/dtensor/detail/layout_size.h>

namespace sherd {
namespace {

int64_t round_up(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor * divisor; }

std::vector<LayoutParam> layout_params(const std::vector<LayerWiseParam>& params) {
  std::vector<LayoutParam> all;
  for (const auto& p : params) all.push_back(p.param);
  return all;
}

void check(const std::vector<LayerWiseParam>& params, int world, const LayerWiseOptions& options) {
  std::string bad;
  if (world < 1) bad += fmt::format("\n  world is {}; it must be at least 1", world);
  if (params.empty()) bad += "\n  the list of parameters is empty; pass at least one";
  if (options.align < 1) bad += fmt::format("\n  align is {}; it must be at least 1", options.align);
  if (options.bucket_elements < 0)
    bad += fmt::format("\n  bucket_elements is {}; it must be at least 1, or 0 for one bucket",
                       options.bucket_elements);
  for (const auto& p : params) bad += complaints_about(p.param);
  if (!bad.empty()) throw InvalidArgument("LayerWiseLayout::make:" + bad);
  check_sizes(layout_params(params), world, {.policy = LayoutPolicy::whole_param, .align = options.align});
}

/// Open part of the walk over the model: its number of elements, and an estimate of the fullest and the
/// emptiest slice, available before the packing.
class Chunk {
 public:
  Chunk(int world, int64_t bucket_elements) : world_(world), least_(bucket_elements) { clear(); }

  void clear() {
    numel_ = largest_ = fullest_ = 0;
    fills_ = Fills(std::greater<>(), std::vector<int64_t>(static_cast<size_t>(world_)));
  }

  void add(int64_t numel) {
    numel_ += numel;
    largest_ = std::max(largest_, numel);
    const int64_t fill = round_up(fills_.top(), kPackAlign) + numel;
    fills_.pop();
    fills_.push(fill);
    fullest_ = std::max(fullest_, fill);
  }

  bool closes_before(int64_t next) const {
    if (least_ == 0) return false;
    const double balanced = 0.9 * world_ * static_cast<double>(largest_);
    if (numel_ < least_ || balanced >= kMost || numel_ < static_cast<int64_t>(balanced)) return false;
    return round_up(fills_.top(), kPackAlign) + next > round_up(fullest_, shard_divisor(world_));
  }

 private:
  static constexpr double kMost = 0x1p63;
  using Fills = std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>>;
  int world_;
  int64_t least_, numel_ = 0, largest_ = 0, fullest_ = 0;
  Fills fills_;
};

}  // namespace

LayerWiseLayout LayerWiseLayout::make(const std::vector<LayerWiseParam>& params, int world,
                                      const LayerWiseOptions& options) {
  check(params, world, options);
  LayerWiseLayout l;
  l.world = world;
  const auto close = [&](size_t first, size_t end) {
    if (first == end) return;
    LayoutOptions o{.policy = LayoutPolicy::whole_param, .packing = options.packing, .align = options.align};
    if (!l.buckets.empty()) o.carried_cost = l.rank_cost();
    std::vector<LayoutParam> chunk;
    for (size_t i = first; i < end; ++i) chunk.push_back(params[i].param);
    l.buckets.push_back(
        {FullIndex(l.elements), static_cast<int>(first), ShardLayout::make(std::move(chunk), world, o)});
    if (__builtin_add_overflow(l.elements, l.buckets.back().layout.buffer_elements(), &l.elements))
      throw InvalidArgument(
          fmt::format("LayerWiseLayout::make: {} need more elements than 64 bits count, in {} buckets and "
                      "more; use fewer "
                      "ranks, a smaller align, or larger buckets (each tied parameter has one of its own)",
                      sizes_text(layout_params(params), world, options.align), l.buckets.size() - 1));
    l.padding += l.buckets.back().layout.padding();
  };

  size_t end = params.size();  // of the open chunk
  Chunk open(world, options.bucket_elements);
  for (size_t i = params.size(); i-- > 0;) {
    const int64_t numel = numel_of(params[i].param.shape);
    if (end > i + 1 && (params[i].tied || open.closes_before(numel))) {
      close(i + 1, end);
      end = i + 1;
      open.clear();
    }
    open.add(numel);
    if (!params[i].tied) continue;
    close(i, end);
    end = i;
    open.clear();
  }
  close(0, end);
  return l;
}

uint64_t LayerWiseLayout::fingerprint() const {
  std::vector<uint64_t> words;
  for (const LayerWiseBucket& b : buckets) {
    words.push_back(static_cast<uint64_t>(b.first_param));
    words.push_back(b.layout.fingerprint());
  }
  return XXH64(words.data(), words.size() * sizeof(uint64_t), 0);
}

}  // namespace sherd
