#include <sherd/dtensor/layer_wise.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <queue>

#include <fmt/format.h>
#include <xxhash.h>

#include <sherd/kernels/error.h>

namespace sherd {
namespace {

int64_t round_up(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor * divisor; }

void check(const std::vector<LayerWiseParam>& params, int world, const LayerWiseOptions& options) {
  std::string bad;
  if (world < 1) bad += fmt::format("\n  world is {}; it must be at least 1", world);
  if (params.empty()) bad += "\n  there are no parameters; pass at least one";
  if (options.align < 1) bad += fmt::format("\n  align is {}; it must be at least 1", options.align);
  if (options.bucket_elements < 0)
    bad += fmt::format("\n  bucket_elements is {}; it must be at least 1, or 0 for one bucket",
                       options.bucket_elements);
  for (const auto& p : params) bad += complaints_about(p.param);
  if (!bad.empty()) throw InvalidArgument("LayerWiseLayout::make:" + bad);
}

/// What is open while the model is walked: how many elements, and an estimate of the fullest and the emptiest
/// slice that does not wait for the packing.
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
    const auto balanced = static_cast<int64_t>(0.9 * world_ * static_cast<double>(largest_));
    if (numel_ < std::max(least_, balanced)) return false;
    return round_up(fills_.top(), kPackAlign) + next > round_up(fullest_, shard_divisor(world_));
  }

 private:
  using Fills = std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>>;
  int world_;
  int64_t least_, numel_ = 0, largest_ = 0, fullest_ = 0;
  Fills fills_;
};

}  // namespace

LayerWiseLayout LayerWiseLayout::make(std::vector<LayerWiseParam> params, int world,
                                      const LayerWiseOptions& options) {
  check(params, world, options);
  LayerWiseLayout l;
  l.params = std::move(params);
  l.world = world;
  l.options = options;
  l.places.resize(l.params.size());
  l.rank_cost.resize(static_cast<size_t>(world));
  std::vector<PackItem> items;
  for (const auto& p : l.params) items.push_back({numel_of(p.param.shape), packing_cost(p.param)});

  int64_t used = 0;
  const auto close = [&](size_t first, size_t end) {
    if (first == end) return;
    const auto chunk = std::span<const PackItem>(items).subspan(first, end - first);
    const Packed packed = pack(chunk, world, options.packing, l.rank_cost);
    const int64_t slice = round_up(packed.slice, std::lcm(shard_divisor(world), options.align));
    const int bucket = static_cast<int>(l.buckets.size());
    l.buckets.push_back({FullIndex(l.elements), slice, static_cast<int>(first), static_cast<int>(end)});
    for (size_t i = first; i < end; ++i) {
      const FullIndex begin(l.elements + packed.rank[i - first] * slice + packed.offset[i - first]);
      l.places[i] = {bucket, packed.rank[i - first], {begin, begin + items[i].numel}};
      used += items[i].numel;
    }
    l.elements += slice * world;
  };

  size_t end = items.size();  // of the open chunk
  Chunk open(world, options.bucket_elements);
  for (size_t i = items.size(); i-- > 0;) {
    const bool alone = l.params[i].tied;
    if (end > i + 1 && (alone || open.closes_before(items[i].numel))) {
      close(i + 1, end);
      end = i + 1;
      open.clear();
    }
    open.add(items[i].numel);
    if (!alone) continue;
    close(i, end);
    end = i;
    open.clear();
  }
  close(0, end);
  l.padding = l.elements - used;
  return l;
}

uint64_t LayerWiseLayout::fingerprint() const {
  std::vector<uint64_t> words;
  const auto put = [&](auto v) { words.push_back(static_cast<uint64_t>(v)); };
  put(options.packing);
  put(options.bucket_elements);
  put(options.align);
  put(world);
  put(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    const LayoutParam& p = params[i].param;
    put(XXH64(p.name.data(), p.name.size(), 0));
    put(p.shape.size());
    for (int64_t d : p.shape) put(d);
    put(std::bit_cast<uint64_t>(p.cost));
    put(params[i].tied);
    put(places[i].bucket);
    put(places[i].rank);
    put(places[i].range.begin.value);
  }
  for (const LayerWiseBucket& b : buckets) put(b.slice);
  return XXH64(words.data(), words.size() * sizeof(uint64_t), 0);
}

}  // namespace sherd
