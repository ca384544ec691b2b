#include <sherd/train/data/mixture.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <sherd/base/error.h>

namespace sherd {
namespace {

static_assert(Mixture::kLongestPeriod <= int64_t{1} << 30, "floor_sum() stays below 2^63");

/// Sum over i in [0, n) of floor((a i + b) / m), by Euclid's algorithm on (m, a). n <= m, a <= m and b <= m,
/// and m <= 2^30.
int64_t floor_sum(int64_t n, int64_t m, int64_t a, int64_t b) {
  int64_t sum = 0;
  while (n > 0) {
    sum += n * (n - 1) / 2 * (a / m) + n * (b / m);
    a %= m;
    b %= m;
    // The points under the line, counted along the other axis.
    const int64_t top = a * n + b;
    n = top / m;
    b = top % m;
    std::swap(m, a);
  }
  return sum;
}

/// Returns the sum of the terms of the continued fraction of a / b; 0 unless coprime. The smaller it is, the
/// more evenly the multiples of b mod a are distributed (Niederreiter, Random number generation and
/// quasi-Monte Carlo methods, 1992).
int64_t sum_of_quotients(int64_t a, int64_t b) {
  int64_t sum = 0;
  while (b > 0) {
    sum += a / b;
    a = std::exchange(b, a % b);
  }
  return a == 1 ? sum : 0;
}

/// The best of those near the golden section, around which good ones are frequent.
int64_t stride_of(int64_t period) {
  constexpr int64_t kAround = 500;
  const int64_t middle = period * 618034 / 1'000'000;
  int64_t best = 0, least = std::numeric_limits<int64_t>::max();
  for (int64_t stride = std::max<int64_t>(1, middle - kAround); stride <= std::min(period, middle + kAround);
       ++stride) {
    const int64_t sum = sum_of_quotients(period, stride);
    if (sum == 0 || sum >= least) continue;
    least = sum;
    best = stride;
  }
  return best;
}

}  // namespace

Mixture::Mixture(std::vector<int64_t> shares) : ends_(std::move(shares)) {
  if (ends_.empty()) throw InvalidArgument("a mixture of no sources");
  int64_t sum = 0;
  for (int64_t& share : ends_) {
    if (share < 1 || share > kLongestPeriod - sum)
      throw InvalidArgument(fmt::format(
          "Mixture: shares must be positive and add up to at most {}; {} follows {}: use smaller ones of "
          "about the same proportion",
          kLongestPeriod, share, sum));
    share = sum += share;
  }
  stride_ = stride_of(sum);
}

Mixture::Draw Mixture::draw(int64_t sequence) const {
  if (sequence < 0) throw InvalidArgument(fmt::format("sequence {} of a mixture", sequence));
  const int64_t number = sequence % period() * stride_ % period();
  const auto source =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), number) - ends_.begin());
  return {source, drawn(source, sequence)};
}

int64_t Mixture::drawn(size_t source, int64_t sequences) const {
  const int64_t m = period(), p = sequences % m, b = begin(source), e = ends_[source];
  // floor((x + m - b) / m) - floor((x + m - e) / m) is 1 where x mod m is in [b, e), else 0.
  return sequences / m * share(source) + floor_sum(p, m, stride_, m - b) - floor_sum(p, m, stride_, m - e);
}

}  // namespace sherd
