#include <sherd/dtensor/detail/ragged_placement.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include <sherd/dtensor/detail/layout_size.h>

namespace sherd {
namespace {

/// A parameter as the search sees it.
struct Item {
  int64_t numel = 0;
  int64_t width = 0;  // row width when it must not be cut inside rows, else 0
  int64_t granule = 1;
};

/// x with a * x = 1 modulo m, for gcd(a, m) = 1.
int64_t inverse_modulo(int64_t a, int64_t m) {
  int64_t r0 = m, r1 = a % m, x0 = 0, x1 = 1;
  while (r1 != 0) {
    const int64_t q = r0 / r1;
    r0 -= q * r1;
    std::swap(r0, r1);
    x0 -= q * x1;
    std::swap(x0, x1);
  }
  return (x0 % m + m) % m;
}

/// Boundaries at multiples of a slice, against rows of one width. From one boundary between rows to the next
/// there are `period` slices.
class RowGrid {
 public:
  RowGrid(int64_t slice, int64_t width)
      : slice_(slice),
        unit_(std::gcd(slice, width)),
        period_(width / unit_),
        inverse_(inverse_modulo(slice / unit_, period_)) {}

  int64_t period() const { return period_; }

  /// Boundaries inside rows of a parameter that starts at `begin`.
  int64_t cuts(int64_t begin, int64_t numel) const {
    const int64_t first = begin / slice_ + 1, last = (begin + numel - 1) / slice_;
    const int64_t boundaries = std::max<int64_t>(0, last - first + 1);
    if (boundaries == 0 || begin % unit_ != 0) return boundaries;
    // Boundary k is between rows when k * slice = begin modulo width.
    const auto k = static_cast<int64_t>(Wide{begin / unit_ % period_} * inverse_ % period_);
    const int64_t fit = first + ((k - first) % period_ + period_) % period_;
    return boundaries - (fit > last ? 0 : (last - fit) / period_ + 1);
  }

  /// No placement of a parameter of this size cuts fewer rows.
  int64_t least_cuts(int64_t numel) const {
    const int64_t boundaries = (numel - 1) / slice_;
    return boundaries - (boundaries + period_ - 1) / period_;
  }

 private:
  int64_t slice_, unit_, period_, inverse_;
};

struct Trial {
  int64_t cuts = 0;
  std::vector<int64_t> begin;
};

class Search {
 public:
  Search(const std::vector<LayoutParam>& params, int world, const LayoutOptions& options)
      : world_(world), align_(options.align) {
    for (const auto& p : params) {
      const int64_t n = numel_of(p.shape);
      items_.push_back({n, p.cut == CutClass::row && n > 0 ? row_size(p.shape) : 0, p.granule});
      total_ += n;
      if (items_.back().width > 0) elements_of_width_[items_.back().width] += n;
    }
    least_slice_ = round_up((std::max<int64_t>(total_, 1) + world - 1) / world);
    const auto allowed =
        static_cast<int64_t>(std::floor((1.0 + options.padding_budget) * static_cast<double>(total_)));
    most_slice_ = std::max(least_slice_, allowed / world / align_ * align_);
    make_orders(options.rotation);
  }

  RaggedPlacement run() const {
    struct Candidate {
      int64_t least_cuts, slice;
    };
    std::vector<Candidate> candidates;
    for (int64_t slice : candidate_slices()) candidates.push_back({least_cuts(slice), slice});
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
      return std::tie(a.least_cuts, a.slice) < std::tie(b.least_cuts, b.slice);
    });

    // Bounds the time for very many parameters; counted, not clocked, so that every rank stops at the same
    // place.
    int64_t trials_left = std::max<int64_t>(64, 300'000 / static_cast<int64_t>(items_.size()));
    Trial best;
    RaggedPlacement result;
    for (const Candidate& c : candidates) {
      if (result.slice > 0 && std::tie(c.least_cuts, c.slice) >= std::tie(best.cuts, result.slice)) break;
      if (trials_left <= 0) break;
      for (const auto& order : orders_) {
        Trial trial = place(order, c.slice);
        --trials_left;
        if (result.slice == 0 || std::tie(trial.cuts, c.slice) < std::tie(best.cuts, result.slice)) {
          best = std::move(trial);
          result.slice = c.slice;
        }
      }
    }
    result.begin = std::move(best.begin);
    return result;
  }

 private:
  using Order = std::vector<size_t>;

  int64_t round_up(int64_t n) const { return (n + align_ - 1) / align_ * align_; }

  /// The given order rotated; that with all parameters that may be cut anywhere together; that with all
  /// parameters of one row width together. Groups stand where their first member stood.
  void make_orders(int rotation) {
    const auto n = static_cast<int64_t>(items_.size());
    Order rotated(items_.size());
    for (int64_t i = 0; i < n; ++i) rotated[i] = static_cast<size_t>(((i + rotation) % n + n) % n);
    const auto grouped = [&](bool by_width) {
      std::map<int64_t, size_t> group;  // width -> place of its first member
      std::vector<std::pair<size_t, size_t>> keyed;
      for (size_t i = 0; i < rotated.size(); ++i) {
        const int64_t width = items_[rotated[i]].width;
        const bool single = width > 0 && !by_width;
        keyed.emplace_back(single ? i : group.try_emplace(width, i).first->second, rotated[i]);
      }
      std::stable_sort(keyed.begin(), keyed.end(), [](auto& a, auto& b) { return a.first < b.first; });
      Order order;
      for (const auto& k : keyed) order.push_back(k.second);
      return order;
    };
    for (Order order : {rotated, grouped(false), grouped(true)}) {
      // Larger granules first: they are powers of 2 and divide their parameters, so every parameter begins at a multiple of its own.
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return items_[a].granule > items_[b].granule; });
      if (std::find(orders_.begin(), orders_.end(), order) == orders_.end()) orders_.push_back(order);
    }
  }

  /// Slices worth trying: all of them when they are few; else multiples of whole row widths, of halves and
  /// thirds of them (then every second or third boundary falls between rows), and some that only leave room
  /// for gaps.
  std::vector<int64_t> candidate_slices() const {
    constexpr int64_t kAll = 1024, kRoom = 8, kMultiples = 4;
    constexpr size_t kWidths = 8;
    std::vector<int64_t> slices;
    if (elements_of_width_.empty() || world_ == 1) return {least_slice_};
    if ((most_slice_ - least_slice_) / align_ < kAll) {
      for (int64_t s = least_slice_; s <= most_slice_; s += align_) slices.push_back(s);
      return slices;
    }
    for (int64_t i = 0; i <= kRoom; ++i)
      slices.push_back(round_up(least_slice_ + (most_slice_ - least_slice_) / kRoom * i));

    std::vector<std::pair<int64_t, int64_t>> widths;  // (-elements, width): the largest share first
    for (auto [width, elements] : elements_of_width_) widths.emplace_back(-elements, width);
    std::sort(widths.begin(), widths.end());
    if (widths.size() > kWidths) widths.resize(kWidths);
    for (size_t subset = 1; subset < size_t{1} << widths.size(); ++subset) {
      int64_t step = align_;
      for (size_t i = 0; i < widths.size() && step <= 3 * most_slice_; ++i)
        if (subset >> i & 1)
          step = static_cast<int64_t>(std::min<Wide>(
              Wide{step / std::gcd(step, widths[i].second)} * widths[i].second, 3 * most_slice_ + 1));
      for (int64_t part : {1, 2, 3}) {
        if (step % (part * align_) != 0) continue;
        const int64_t unit = step / part;
        const int64_t first = (least_slice_ + unit - 1) / unit * unit;
        for (int64_t i = 0; i < kMultiples; ++i) slices.push_back(first + i * unit);
      }
    }
    std::erase_if(slices, [&](int64_t s) { return s > most_slice_; });
    std::sort(slices.begin(), slices.end());
    slices.erase(std::unique(slices.begin(), slices.end()), slices.end());
    return slices;
  }

  std::map<int64_t, RowGrid> grids(int64_t slice) const {
    std::map<int64_t, RowGrid> grids;
    for (auto [width, _] : elements_of_width_) grids.emplace(width, RowGrid(slice, width));
    return grids;
  }

  int64_t least_cuts(int64_t slice) const {
    const auto grid = grids(slice);
    int64_t cuts = 0;
    for (const Item& item : items_)
      if (item.width > 0) cuts += grid.at(item.width).least_cuts(item.numel);
    return cuts;
  }

  /// One after another, each with the gap before it that cuts the fewest rows, while the padding lasts.
  Trial place(const Order& order, int64_t slice) const {
    const auto grid = grids(slice);
    Trial trial;
    trial.begin.resize(items_.size());
    int64_t at = 0, spare = world_ * slice - total_;
    for (size_t i : order) {
      const Item& item = items_[i];
      int64_t gap = 0;
      if (item.width > 0) {
        const RowGrid& rows = grid.at(item.width);
        int64_t cuts = rows.cuts(at, item.numel);
        const auto offer = [&](int64_t g) {
          if (cuts == 0 || g > spare) return;
          const int64_t c = rows.cuts(at + g, item.numel);
          if (std::tie(c, g) < std::tie(cuts, gap)) std::tie(cuts, gap) = std::tie(c, g);
        };
        const int64_t to_boundary = slice - at % slice;
        // Whole rows up to one of the next boundaries; or start behind the next one, whole rows up to that
        // after it.
        for (int64_t k = 0; k < std::min<int64_t>(rows.period(), 4); ++k)
          offer((to_boundary + k * slice) % item.width);
        offer(to_boundary + slice % item.width);
        trial.cuts += cuts;
      }
      trial.begin[i] = at + gap;
      at += gap + item.numel;
      spare -= gap;
    }
    // Slices that stay empty stand behind the last given parameter and so rotate with it, which keeps the
    // same ranks from being idle in every unit. Whole slices do not change which rows are cut.
    const auto last = std::find(order.begin(), order.end(), items_.size() - 1);
    for (auto i = last + 1; i < order.end(); ++i) trial.begin[*i] += spare / slice * slice;
    return trial;
  }

  int64_t world_, align_;
  std::vector<Item> items_;
  std::map<int64_t, int64_t> elements_of_width_;
  std::vector<Order> orders_;
  int64_t total_ = 0, least_slice_ = 0, most_slice_ = 0;
};

}  // namespace

RaggedPlacement place_ragged(const std::vector<LayoutParam>& params, int world,
                             const LayoutOptions& options) {
  return Search(params, world, options).run();
}

}  // namespace sherd
