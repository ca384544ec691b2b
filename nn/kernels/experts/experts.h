// Mixtures of experts: routing, and rows in the order of their experts. ops.h says what holds for all
// operations.
#pragma once

#include <cstdint>
#include <optional>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// Chooses k experts for every row by its logits [rows, experts]: the largest, ties and NaN to the
/// lower index. indices [rows, k], best first. gates [rows, k]: the softmax probabilities of the chosen ones, or
/// `normalised`, those divided by their sum, which is the softmax of the chosen logits alone and is computed so.
/// Backward: dlogits = the gradient through
/// the gates, plus that of balance * sum over rows and experts of counts[e] * softmax(logits)[e] when counts
/// [layers, experts] is not null (counts[e]: its sum over layers; counts are constants). logits and dlogits may differ in dtype; gates and dgates are f32 (f64
/// in the reference's own tests).
struct RouteArgs {
  int64_t rows = 0, experts = 0, k = 0;
  bool normalised = false;
  Ref logits{}, gates{};
  int32_t* indices = nullptr;
  Ref dgates{}, dlogits{};
  const int32_t* counts = nullptr;
  int64_t layers = 1;
  float balance = 0;
};

/// The stable order of `count` places by their expert: order[j] is the place that comes j-th, position its
/// inverse, counts[e] the number of places of expert e.
struct ExpertSortArgs {
  int64_t count = 0, experts = 0;
  const int32_t* indices = nullptr;
  int32_t* order = nullptr;
  int32_t* position = nullptr;
  int32_t* counts = nullptr;
};

/// Rows of tokens [rows, cols] beside their copies [rows * slots, cols] in another order: copy j belongs to
/// place order[j] = row * slots + slot, and position is the inverse of order. gates [rows, slots] may be null
/// (all ones).
///   expand:  copies[j] = gates[order[j]] * tokens[order[j] / slots]
///   combine: tokens[r] = sum over slots, in their order, of gates[r, s] * copies[position[r, s]]
///   gates_backward: dgates[r, s] = dot(tokens[r], copies[position[r, s]]), with the gradient of tokens.
struct ExpertRowsArgs {
  int64_t rows = 0, slots = 1, cols = 0;
  Ref tokens{}, copies{};
  const int32_t* order = nullptr;
  const int32_t* position = nullptr;
  Ref gates{}, dgates{};
};

inline Work work_of(const Device&, const ExpertRowsArgs& a) {
  return {.bytes = bytes_of({a.tokens}, a.rows * a.cols) + bytes_of({a.copies}, a.rows * a.slots * a.cols)};
}
inline Work work_of(const Device&, const RouteArgs& a) {
  return {.bytes = bytes_of({a.logits, a.dlogits}, a.rows * a.experts)};
}

struct ExpertsKernels {
  static constexpr const char* kName = "experts";
  static const ExpertsKernels* reference();
  static const ExpertsKernels* cpu();
  static const ExpertsKernels* cuda();

  void (*route_top_k)(ExecutionContext&, const RouteArgs&);
  void (*route_top_k_backward)(ExecutionContext&, const RouteArgs&);
  void (*sort_by_expert)(ExecutionContext&, const ExpertSortArgs&);
  void (*expand_rows)(ExecutionContext&, const ExpertRowsArgs&);
  void (*combine_rows)(ExecutionContext&, const ExpertRowsArgs&);
  void (*combine_gates_backward)(ExecutionContext&, const ExpertRowsArgs&);
};

namespace ops {

/// The most experts that a row may choose.
inline constexpr int64_t kMostExpertsOfARow = 64;
/// logits [rows, experts]; indices i32 [rows, k], gates f32 [rows, k].
/// @param normalised whether gates are divided by their sum; without a word those of several experts are.
/// @throws InvalidArgument for a k that is not in [1, min(experts, kMostExpertsOfARow)].
void route_top_k(Stream& s, const Tensor& indices, const Tensor& gates, const Tensor& logits,
                 std::optional<bool> normalised = {});
/// dgates f32 [rows, k]; counts i32 [experts] or [layers, experts], or undefined (no balancing term).
void route_top_k_backward(Stream& s, const Tensor& dlogits, const Tensor& dgates, const Tensor& logits,
                          const Tensor& indices, const Tensor& counts, float balance,
                          std::optional<bool> normalised = {});
/// All i32; counts [experts], the others of one element count. An index outside [0, experts) fails the stream
/// with InvalidArgument.
void sort_by_expert(Stream& s, const Tensor& order, const Tensor& position, const Tensor& counts,
                    const Tensor& indices);
/// tokens [rows, cols], copies [rows * slots, cols], order and position i32 [rows * slots], gates f32 of as
/// many elements or undefined. An index outside the tensor fails the stream with InvalidArgument.
void expand_rows(Stream& s, const Tensor& copies, const Tensor& tokens, const Tensor& order,
                 const Tensor& gates);
void combine_rows(Stream& s, const Tensor& tokens, const Tensor& copies, const Tensor& position,
                  const Tensor& gates);
void combine_gates_backward(Stream& s, const Tensor& dgates, const Tensor& dtokens, const Tensor& copies,
                            const Tensor& position);

}  // namespace ops
}  // namespace sherd
