#include <sherd/nn/kernels/experts/experts.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <sherd/kernels/device/reference/access.h>

#include "reference_groups.h"

namespace sherd::reference {
namespace {

std::vector<double> softmax(const RouteArgs& a, int64_t row) {
  std::vector<double> p(static_cast<size_t>(a.experts));
  double top = -INFINITY, total = 0;
  for (int64_t e = 0; e < a.experts; ++e) top = std::max(top, get(a.logits, row * a.experts + e));
  for (int64_t e = 0; e < a.experts; ++e)
    total += p[static_cast<size_t>(e)] = std::exp(get(a.logits, row * a.experts + e) - top);
  for (double& v : p) v /= total;
  return p;
}

// The largest of a row's logits, the `count` that are chosen left out.
int32_t largest(const RouteArgs& a, int64_t row, const int32_t* chosen, int64_t count) {
  const auto taken = [&](int64_t e) { return std::find(chosen, chosen + count, e) != chosen + count; };
  int64_t best = 0;
  while (taken(best)) ++best;
  for (int64_t e = best + 1; e < a.experts; ++e)
    if (!taken(e) && get(a.logits, row * a.experts + e) > get(a.logits, row * a.experts + best)) best = e;
  return static_cast<int32_t>(best);
}

// Normalised gates from the chosen logits alone: exact also where all probabilities vanish.
std::vector<double> normalised_gates(const RouteArgs& a, int64_t row) {
  const auto logit = [&](int64_t i) { return get(a.logits, row * a.experts + a.indices[row * a.k + i]); };
  std::vector<double> gates(static_cast<size_t>(a.k), 1.0);
  double total = 1;
  for (int64_t i = 1; i < a.k; ++i) total += gates[static_cast<size_t>(i)] = std::exp(logit(i) - logit(0));
  for (double& g : gates) g /= total;
  return gates;
}

double gate(const ExpertRowsArgs& a, int64_t place) {
  return a.gates.data == nullptr ? 1 : get(a.gates, place);
}

void route_top_k(ExecutionContext&, const RouteArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    int32_t* chosen = a.indices + r * a.k;
    for (int64_t i = 0; i < a.k; ++i) chosen[i] = largest(a, r, chosen, i);
    const std::vector<double> p = a.normalised ? normalised_gates(a, r) : softmax(a, r);
    for (int64_t i = 0; i < a.k; ++i)
      put(a.gates, r * a.k + i, p[static_cast<size_t>(a.normalised ? i : chosen[i])]);
  }
}

// Returns the factor of a count and a probability in the balancing term. In f32, as in the other kernels.
float balance_of(const RouteArgs& a) {
  const int32_t* const counts = a.counts + a.layer * a.experts;
  const int64_t rows = std::accumulate(counts, counts + a.experts, int64_t{0}) / a.k;
  const auto layers = static_cast<float>(a.layers);
  return a.balance / (static_cast<float>(std::max<int64_t>(1, rows)) * layers * layers);
}

void route_top_k_backward(ExecutionContext&, const RouteArgs& a) {
  const double balance = a.counts != nullptr ? double{balance_of(a)} : 0;
  for (int64_t r = 0; r < a.rows; ++r) {
    const std::vector<double> p = softmax(a, r);
    const int32_t* chosen = a.indices + r * a.k;
    std::vector<double> dp(p.size(), 0.0);
    for (int64_t e = 0; e < a.experts && a.counts != nullptr && !is_padding(a, r); ++e)
      for (int64_t l = 0; l < a.layers; ++l)
        dp[static_cast<size_t>(e)] += balance * a.counts[l * a.experts + e];
    for (int64_t i = 0; i < a.k && !a.normalised; ++i)
      dp[static_cast<size_t>(chosen[i])] += get(a.dgates, r * a.k + i);
    double mean = 0;
    for (size_t e = 0; e < p.size(); ++e) mean += p[e] * dp[e];
    std::vector<double> d(p.size());
    for (size_t e = 0; e < p.size(); ++e) d[e] = p[e] * (dp[e] - mean);
    if (a.normalised) {
      const std::vector<double> gates = normalised_gates(a, r);
      double mean_slope = 0;
      for (int64_t i = 0; i < a.k; ++i)
        mean_slope += gates[static_cast<size_t>(i)] * get(a.dgates, r * a.k + i);
      for (int64_t i = 0; i < a.k; ++i)
        d[static_cast<size_t>(chosen[i])] +=
            gates[static_cast<size_t>(i)] * (get(a.dgates, r * a.k + i) - mean_slope);
    }
    for (int64_t e = 0; e < a.experts; ++e) put(a.dlogits, r * a.experts + e, d[static_cast<size_t>(e)]);
  }
}

void sort_by_expert(ExecutionContext&, const ExpertSortArgs& a) {
  std::fill_n(a.counts, a.experts, 0);
  for (int64_t i = 0; i < a.count; ++i) ++a.counts[a.indices[i]];
  std::vector<int32_t> next(static_cast<size_t>(a.experts));
  for (int64_t e = 1; e < a.experts; ++e)
    next[static_cast<size_t>(e)] = next[static_cast<size_t>(e - 1)] + a.counts[e - 1];
  for (int64_t i = 0; i < a.count; ++i) {
    const int32_t j = next[static_cast<size_t>(a.indices[i])]++;
    a.order[j] = static_cast<int32_t>(i);
    a.position[i] = j;
  }
}

void expand_rows(ExecutionContext&, const ExpertRowsArgs& a) {
  for (int64_t j = 0; j < a.rows * a.slots; ++j)
    for (int64_t c = 0; c < a.cols; ++c)
      put(a.copies, j * a.cols + c, gate(a, a.order[j]) * get(a.tokens, a.order[j] / a.slots * a.cols + c));
}

void combine_rows(ExecutionContext&, const ExpertRowsArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c < a.cols; ++c) {
      double sum = 0;
      for (int64_t place = r * a.slots; place < (r + 1) * a.slots; ++place)
        sum += gate(a, place) * get(a.copies, a.position[place] * a.cols + c);
      put(a.tokens, r * a.cols + c, sum);
    }
  }
}

void combine_gates_backward(ExecutionContext&, const ExpertRowsArgs& a) {
  for (int64_t place = 0; place < a.rows * a.slots; ++place) {
    double dot = 0;
    for (int64_t c = 0; c < a.cols; ++c)
      dot += get(a.tokens, place / a.slots * a.cols + c) * get(a.copies, a.position[place] * a.cols + c);
    put(a.dgates, place, dot);
  }
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const ExpertsKernels* ExpertsKernels::reference() {
  static constexpr ExpertsKernels table{
      .route_top_k = reference::route_top_k,
      .route_top_k_backward = reference::route_top_k_backward,
      .route_in_groups = reference::route_in_groups,
      .route_in_groups_backward = reference::route_in_groups_backward,
      .count_choices = reference::count_choices,
      .update_selection_bias = reference::update_selection_bias,
      .sort_by_expert = reference::sort_by_expert,
      .expand_rows = reference::expand_rows,
      .combine_rows = reference::combine_rows,
      .combine_gates_backward = reference::combine_gates_backward,
  };
  return &table;
}

}  // namespace sherd
