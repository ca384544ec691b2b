#include <sherd/nn/kernels/experts/experts.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/parallel.h>

namespace sherd::cpu {
namespace {

// A row of logits widened to f32: E is small, so this file's routing loops need no vector code.
struct Row {
  Ref logits;
  int64_t begin;
  float operator[](int64_t e) const {
    return logits.dtype == DType::f32 ? logits.as<float>()[begin + e] : float(logits.as<bf16>()[begin + e]);
  }
};

int64_t largest(const Row& row, int64_t experts, const int32_t* chosen, int64_t count) {
  const auto taken = [&](int64_t e) { return std::find(chosen, chosen + count, e) != chosen + count; };
  int64_t best = 0;
  while (taken(best)) ++best;
  for (int64_t e = best + 1; e < experts; ++e)
    if (row[e] > row[best] && !taken(e)) best = e;
  return best;
}

// p[e] = softmax(row)[e] is exp(row[e] - shift.top) * shift.scale.
struct Shift {
  float top, scale;
};
Shift shift_of(const Row& row, int64_t experts) {
  float top = row[0], total = 0;
  for (int64_t e = 1; e < experts; ++e) top = std::max(top, row[e]);
  for (int64_t e = 0; e < experts; ++e) total += std::exp(row[e] - top);
  return {top, 1.0f / total};
}

float first_of_two(float first, float second) { return 1.0f / (1.0f + std::exp(second - first)); }

// From the chosen logits alone, the best of which comes first.
void normalised_gates(float* gates, const Row& row, const int32_t* chosen, int64_t k) {
  if (k == 2) {
    gates[0] = first_of_two(row[chosen[0]], row[chosen[1]]);
    gates[1] = 1.0f - gates[0];
    return;
  }
  float total = gates[0] = 1;
  for (int64_t i = 1; i < k; ++i) total += gates[i] = std::exp(row[chosen[i]] - row[chosen[0]]);
  for (int64_t i = 0; i < k; ++i) gates[i] /= total;
}

template <class T>
void expand(ExecutionContext& ctx, const ExpertRowsArgs& a) {
  const T* from = a.tokens.as<T>();
  T* to = a.copies.as<T>();
  const float* gates = a.gates.as<float>();
  const int32_t* order = a.order;
  const int64_t slots = a.slots, cols = a.cols;
  parallel_for(ctx, a.rows * slots, row_grain(cols), [=](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      const T* row = from + order[j] / slots * cols;
      T* copy = to + j * cols;
      if (gates == nullptr) {
        std::copy_n(row, cols, copy);
        continue;
      }
      const float gate = gates[order[j]];
#pragma omp simd
      for (int64_t c = 0; c < cols; ++c) store(copy[c], gate * float(row[c]));
    }
  });
}

template <class T>
void combine(ExecutionContext& ctx, const ExpertRowsArgs& a) {
  const T* from = a.copies.as<T>();
  T* to = a.tokens.as<T>();
  const float* gates = a.gates.as<float>();
  const int32_t* position = a.position;
  const int64_t slots = a.slots, cols = a.cols;
  constexpr int64_t kBlock = 64;
  parallel_for(ctx, a.rows, row_grain(cols * slots), [=](int64_t begin, int64_t end) {
    float sum[kBlock];
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t first = 0; first < cols; first += kBlock) {
        const int64_t width = std::min(kBlock, cols - first);
        std::fill_n(sum, kBlock, 0.0f);
        for (int64_t place = r * slots; place < (r + 1) * slots; ++place) {
          const float gate = gates == nullptr ? 1.0f : gates[place];
          const T* copy = from + position[place] * cols + first;
#pragma omp simd
          for (int64_t c = 0; c < width; ++c) sum[c] += gate * float(copy[c]);
        }
        T* row = to + r * cols + first;
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) store(row[c], sum[c]);
      }
    }
  });
}

template <class T>
float dot(const T* a, const T* b, int64_t cols) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < cols; ++c) sum += float(a[c]) * float(b[c]);
  return sum;
}

void route_top_k(ExecutionContext& ctx, const RouteArgs& a) {
  parallel_for(ctx, a.rows, row_grain(a.experts), [=](int64_t begin, int64_t end) {
    float* gates = a.gates.as<float>();
    for (int64_t r = begin; r < end; ++r) {
      const Row row{a.logits, r * a.experts};
      int32_t* chosen = a.indices + r * a.k;
      for (int64_t i = 0; i < a.k; ++i) chosen[i] = static_cast<int32_t>(largest(row, a.experts, chosen, i));
      if (a.normalised) {
        normalised_gates(gates + r * a.k, row, chosen, a.k);
        continue;
      }
      const Shift shift = shift_of(row, a.experts);
      for (int64_t i = 0; i < a.k; ++i)
        gates[r * a.k + i] = std::exp(row[chosen[i]] - shift.top) * shift.scale;
    }
  });
}

void route_top_k_backward(ExecutionContext& ctx, const RouteArgs& a) {
  std::vector<float> sums(static_cast<size_t>(a.counts != nullptr ? a.experts : 0));  // over layers
  int64_t of_layer = 0;
  for (size_t e = 0; e < sums.size(); ++e) {
    int64_t sum = 0;
    for (int64_t l = 0; l < a.layers; ++l) sum += a.counts[l * a.experts + static_cast<int64_t>(e)];
    sums[e] = static_cast<float>(sum);
    of_layer += a.counts[a.layer * a.experts + static_cast<int64_t>(e)];
  }
  const auto layers = static_cast<float>(a.layers);
  const float balance =
      a.balance / (static_cast<float>(std::max<int64_t>(1, of_layer / a.k)) * layers * layers);
  const float* const counts = sums.data();
  parallel_for(ctx, a.rows, row_grain(a.experts), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* dgates = a.dgates.as<float>() + r * a.k;
      const Row row{a.logits, r * a.experts};
      const int32_t* chosen = a.indices + r * a.k;
      float slope[ops::kMostExpertsOfARow];  // of the chosen ones, normalised
      if (a.normalised) {
        normalised_gates(slope, row, chosen, a.k);
        if (a.k == 2) {
          slope[0] = slope[0] * (1.0f - slope[0]) * (dgates[0] - dgates[1]);
          slope[1] = -slope[0];
        } else {
          float mean_slope = 0;
          for (int64_t i = 0; i < a.k; ++i) mean_slope += slope[i] * dgates[i];
          for (int64_t i = 0; i < a.k; ++i) slope[i] *= dgates[i] - mean_slope;
        }
      }
      const auto slot_of = [&](int64_t e) { return std::find(chosen, chosen + a.k, e) - chosen; };
      const bool balanced = a.counts != nullptr && !is_padding(a, r);
      const bool through_softmax = !a.normalised || balanced;
      const Shift shift = through_softmax ? shift_of(row, a.experts) : Shift{0, 0};
      const auto p = [&](int64_t e) { return std::exp(row[e] - shift.top) * shift.scale; };
      const auto dp = [&](int64_t e) {
        const int64_t slot = a.normalised ? a.k : slot_of(e);
        return (balanced ? balance * counts[e] : 0.0f) + (slot < a.k ? dgates[slot] : 0.0f);
      };
      float mean = 0;
      if (through_softmax)
        for (int64_t e = 0; e < a.experts; ++e) mean += p(e) * dp(e);
      for (int64_t e = 0; e < a.experts; ++e) {
        float d = through_softmax ? p(e) * (dp(e) - mean) : 0.0f;
        if (const int64_t slot = a.normalised ? slot_of(e) : a.k; slot < a.k) d += slope[slot];
        const int64_t i = r * a.experts + e;
        a.dlogits.dtype == DType::f32 ? store(a.dlogits.as<float>()[i], d)
                                      : store(a.dlogits.as<bf16>()[i], d);
      }
    }
  });
}

void expand_rows(ExecutionContext& ctx, const ExpertRowsArgs& a) {
  with_activation(a.tokens.dtype, [&](auto type) { expand<decltype(type)>(ctx, a); });
}

void combine_rows(ExecutionContext& ctx, const ExpertRowsArgs& a) {
  with_activation(a.tokens.dtype, [&](auto type) { combine<decltype(type)>(ctx, a); });
}

void combine_gates_backward(ExecutionContext& ctx, const ExpertRowsArgs& a) {
  with_activation(a.tokens.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(ctx, a.rows * a.slots, row_grain(a.cols), [=](int64_t begin, int64_t end) {
      for (int64_t place = begin; place < end; ++place)
        a.dgates.as<float>()[place] = dot(a.tokens.as<T>() + place / a.slots * a.cols,
                                          a.copies.as<T>() + a.position[place] * a.cols, a.cols);
    });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const ExpertsKernels* ExpertsKernels::cpu() {
  static const ExpertsKernels table{
      .route_top_k = cpu::route_top_k,
      .route_top_k_backward = cpu::route_top_k_backward,
      .route_in_groups = reference()->route_in_groups,
      .route_in_groups_backward = reference()->route_in_groups_backward,
      .count_choices = reference()->count_choices,
      .update_selection_bias = reference()->update_selection_bias,
      .sort_by_expert = reference()->sort_by_expert,
      .expand_rows = cpu::expand_rows,
      .combine_rows = cpu::combine_rows,
      .combine_gates_backward = cpu::combine_gates_backward,
  };
  return &table;
}

}  // namespace sherd
