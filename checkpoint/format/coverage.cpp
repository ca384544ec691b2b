#include <sherd/checkpoint/format/coverage.h>

#include <algorithm>
#include <map>
#include <vector>

namespace sherd {
namespace {

/// Sums of signed corners by their place in row-major order. Places with sum 0 are not kept.
class Corners {
 public:
  explicit Corners(const Shape& shape) : shape_(shape), stride_(shape.size(), 1) {
    for (size_t d = shape.size() - 1; d > 0; --d) stride_[d - 1] = stride_[d] * shape[d];
  }

  int64_t place(const Shape& at) const {
    int64_t sum = 0;
    for (size_t d = 0; d < at.size(); ++d) sum += at[d] * stride_[d];
    return sum;
  }

  Shape at(int64_t place) const {
    Shape at(shape_.size());
    for (size_t d = 0; d < at.size(); ++d) at[d] = place / stride_[d] % shape_[d];
    return at;
  }

  /// Upper corners on the tensor's edge are left out: no element has them below or beside it.
  void add(const Box& box, int sign) { add(box, 0, place(box.offset), sign); }

  /// The first place whose sum is not 0, and the sum.
  std::optional<std::pair<int64_t, int64_t>> first() const {
    if (sums_.empty()) return std::nullopt;
    return *sums_.begin();
  }

 private:
  void add(const Box& box, size_t d, int64_t place, int sign) {
    if (d == shape_.size()) {
      const auto found = sums_.try_emplace(place, 0).first;
      if ((found->second += sign) == 0) sums_.erase(found);
      return;
    }
    add(box, d + 1, place, sign);
    if (box.offset[d] + box.size[d] < shape_[d]) add(box, d + 1, place + box.size[d] * stride_[d], -sign);
  }

  const Shape& shape_;
  Shape stride_;
  std::map<int64_t, int64_t> sums_;
};

bool is_empty(const Shape& size) { return std::find(size.begin(), size.end(), 0) != size.end(); }

}  // namespace

// With f(x) = boxes that hold x, minus 1, the signed corners of the boxes and of the tensor itself (negative)
// add up to f's mixed difference r, and f(x) is the sum of r over all points that are at most x in every
// dimension. At the first point p with r(p) != 0, all of those but p itself come before p: f is 0 before p,
// and f(p) = r(p). A box adds nothing before its offset, so with boxes in the order of their offsets the sums
// before the next one are final, and a fault is found before all boxes are in memory.
std::optional<CoverageFault> coverage_fault(const Shape& shape, std::span<const Box> boxes) {
  if (is_empty(shape)) return std::nullopt;
  Corners corners(shape);
  std::vector<std::pair<int64_t, const Box*>> order;
  order.reserve(boxes.size());
  for (const Box& box : boxes) {
    if (!is_empty(box.size)) order.emplace_back(corners.place(box.offset), &box);
  }
  std::sort(order.begin(), order.end());

  corners.add({Shape(shape.size(), 0), shape}, -1);
  for (const auto& [place, box] : order) {
    if (const auto first = corners.first(); first && first->first < place) break;
    corners.add(*box, 1);
  }
  const auto first = corners.first();
  if (!first) return std::nullopt;
  return CoverageFault{corners.at(first->first), 1 + first->second};
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box both{a.offset, a.size};
  for (size_t d = 0; d < a.size.size(); ++d) {
    both.offset[d] = std::max(a.offset[d], b.offset[d]);
    both.size[d] = std::min(a.offset[d] + a.size[d], b.offset[d] + b.size[d]) - both.offset[d];
    if (both.size[d] <= 0) return std::nullopt;
  }
  return both;
}

}  // namespace sherd
