#include <sherd/nn/kernels/experts/experts.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <sherd/kernels/device/reference/access.h>

#include "reference_groups.h"

namespace sherd::reference {
namespace {

using Scores = std::vector<double>;

Scores sigmoids(const GroupRouteArgs& a, int64_t row) {
  Scores s;
  for (int64_t e = 0; e < a.experts; ++e)
    s.push_back(1 / (1 + std::exp(-get(a.logits, row * a.experts + e))));
  return s;
}

/// The indices of the `count` largest values, best first, ties and NaN to the lower index.
std::vector<size_t> best_of(const Scores& values, int64_t count) {
  std::vector<size_t> left(values.size()), best;
  for (size_t i = 0; i < left.size(); ++i) left[i] = i;
  while (static_cast<int64_t>(best.size()) < count) {
    auto at = left.begin();
    for (auto i = left.begin() + 1; i != left.end(); ++i)
      if (values[*i] > values[*at]) at = i;
    best.push_back(*at);
    left.erase(at);
  }
  return best;
}

// Experts of groups that are not chosen come after all of these.
Scores in_best_groups(const GroupRouteArgs& a, const Scores& scores) {
  const int64_t size = a.experts / a.groups;
  Scores of_groups;
  for (int64_t g = 0; g < a.groups; ++g) {
    const Scores members(scores.begin() + g * size, scores.begin() + (g + 1) * size);
    double sum = 0;
    for (const size_t i : best_of(members, std::min<int64_t>(2, size))) sum += members[i];
    of_groups.push_back(sum);
  }
  Scores open(scores.size(), -INFINITY);
  for (const size_t g : best_of(of_groups, a.top_groups))
    for (size_t e = g * static_cast<size_t>(size); e < (g + 1) * static_cast<size_t>(size); ++e)
      open[e] = scores[e];
  return open;
}

}  // namespace

void route_in_groups(ExecutionContext&, const GroupRouteArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const Scores s = sigmoids(a, r);
    Scores biased = s;
    for (size_t e = 0; e < s.size() && a.bias != nullptr; ++e) biased[e] += double{a.bias[e]};
    const std::vector<size_t> chosen = best_of(in_best_groups(a, biased), a.k);
    double sum = 1e-20;
    for (const size_t e : chosen) sum += s[e];
    for (int64_t i = 0; i < a.k; ++i) {
      const size_t e = chosen[static_cast<size_t>(i)];
      a.indices[r * a.k + i] = static_cast<int32_t>(e);
      put(a.gates, r * a.k + i, double{a.scaling} * s[e] / (a.normalised ? sum : 1));
    }
  }
}

void route_in_groups_backward(ExecutionContext&, const GroupRouteArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const Scores s = sigmoids(a, r);
    const int32_t* chosen = a.indices + r * a.k;
    Scores ds(s.size(), 0.0);
    double sum = 1e-20, mean = 0;
    for (int64_t i = 0; i < a.k; ++i) sum += s[static_cast<size_t>(chosen[i])];
    for (int64_t i = 0; i < a.k; ++i)
      mean += get(a.dgates, r * a.k + i) * s[static_cast<size_t>(chosen[i])] / sum;
    for (int64_t i = 0; i < a.k; ++i) {
      const double dgate = double{a.scaling} * get(a.dgates, r * a.k + i);
      ds[static_cast<size_t>(chosen[i])] += a.normalised ? (dgate - double{a.scaling} * mean) / sum : dgate;
    }
    if (a.counts != nullptr && !is_padding(a, r)) {
      const int64_t sequence = (a.first_row + r) / a.seq;
      const int64_t rows = a.lengths != nullptr ? a.lengths[sequence] : std::max(a.seq, a.positions);
      const double balance{a.balance / static_cast<float>(a.k * rows)};  // in f32, as the other kernels
      const int32_t* counts = a.counts + sequence * a.experts;
      double total = 0, share = 0;
      for (const double value : s) total += value;
      for (size_t e = 0; e < s.size(); ++e) share += counts[e] * s[e] / total;
      for (size_t e = 0; e < s.size(); ++e) ds[e] += balance * (counts[e] - share) / total;
    }
    for (size_t e = 0; e < s.size(); ++e)
      put(a.dlogits, r * a.experts + static_cast<int64_t>(e), ds[e] * s[e] * (1 - s[e]));
  }
}

void count_choices(ExecutionContext&, const CountChoicesArgs& a) {
  for (int64_t i = 0; i < a.rows * a.k; ++i)
    if (!is_padding(a, i / a.k))
      ++a.counts[(a.together ? 0 : (a.first_row + i / a.k) / a.seq * a.experts) + a.indices[i]];
}

void update_selection_bias(ExecutionContext&, const SelectionBiasArgs& a) {
  int64_t total = 0;
  for (int64_t e = 0; e < a.experts; ++e) total += a.load[e];
  for (int64_t e = 0; e < a.experts; ++e) {
    const int64_t missing = total - a.experts * a.load[e];
    if (a.skip == nullptr || *a.skip == 0)
      a.bias[e] += a.speed * static_cast<float>((missing > 0) - (missing < 0));
    a.load[e] = 0;
  }
}

}  // namespace sherd::reference
