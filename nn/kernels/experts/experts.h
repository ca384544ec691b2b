// Mixtures of experts: routing, and rows in the order of their experts. ops.h says what holds for all
// operations.
#pragma once

#include <cstdint>
#include <optional>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// Row r of a call is row first_row + r of `seq` rows of each sequence, from its position first_position on. Positions of a
/// sequence from lengths[sequence] on are padding; where lengths is null none is.
template <class Args>
bool is_padding(const Args& a, int64_t r) {
  return a.lengths != nullptr &&
         a.first_position + (a.first_row + r) % a.seq >= a.lengths[(a.first_row + r) / a.seq];
}

/// Chooses k experts for every row by its logits [rows, experts]: the largest, ties and NaN to the
/// lower index. indices [rows, k], best first. gates [rows, k]: the softmax probabilities of the chosen ones, or
/// `normalised`, those divided by their sum, which is the softmax of the chosen logits alone and is computed so.
/// Backward: dlogits = the gradient through the gates, plus, when counts [layers, experts] is not null, that of
///   balance / (n * layers^2) * sum over rows that are not padding, and experts e, of counts[e] * softmax(logits)[e]
/// with counts[e] summed over layers, and n = the sum of counts[layer] / k, at least 1: the rows that were counted. counts
/// are constants. logits and dlogits may differ in dtype; gates and dgates are f32 (f64 in the reference's own tests).
struct RouteArgs {
  int64_t rows = 0, experts = 0, k = 0;
  bool normalised = false;
  Ref logits{}, gates{};
  int32_t* indices = nullptr;
  Ref dgates{}, dlogits{};
  const int32_t* counts = nullptr;
  int64_t layers = 1, layer = 0;  // layer: of this call
  float balance = 0;
  int64_t first_row = 0, seq = 1, first_position = 0;
  const int32_t* lengths = nullptr;
};

/// Chooses k experts for every row in groups, by sigmoid scores s = sigmoid(logits) (DeepSeek-AI,
/// DeepSeek-V3, 2024, arXiv 2412.19437, section 2.1.2). Experts form `groups` groups of neighbours; a group's
/// score is the sum of its two largest s + bias. The k largest s + bias in a row's top_groups best groups are
/// its choices, best first, ties and NaN to the lower index. gates [rows, k]: scaling * s of the chosen ones,
/// `normalised`, divided by the sum of these s plus 1e-20. bias f32 [experts] chooses alone; null: 0. With
/// one group all of it is a choice among all experts. Backward: dlogits = the gradient through the gates,
/// plus, when counts [sequences, experts] is not null, that of
///   balance * sum over rows r that are not padding, and experts e, of
///     counts[sequence, e] / (k * n) * s[r, e] / (sum over i of s[r, i])
/// with the row's sequence (first_row + r) / seq and n its rows that are not padding, max(seq, positions) of them without lengths; counts are constants. Dtypes as of
/// RouteArgs.
struct GroupRouteArgs {
  int64_t rows = 0, experts = 0, k = 0, groups = 1, top_groups = 1;
  bool normalised = true;
  float scaling = 1;
  Ref logits{}, gates{};
  int32_t* indices = nullptr;
  const float* bias = nullptr;
  Ref dgates{}, dlogits{};
  const int32_t* counts = nullptr;
  int64_t first_row = 0, seq = 1, first_position = 0, positions = 0;
  const int32_t* lengths = nullptr;
  float balance = 0;
};

/// counts[(first_row + r) / seq, e], or counts[e] of all sequences together, is raised by the number of row r's choices that
/// fell on expert e; not by padding.
struct CountChoicesArgs {
  int64_t rows = 0, experts = 0, k = 0, first_row = 0, seq = 1, first_position = 0;
  const int32_t* lengths = nullptr;
  bool together = false;
  const int32_t* indices = nullptr;
  int32_t* counts = nullptr;
};

/// bias[e] += speed * sign(mean of load - load[e]), unless `skip` is not null and not 0; then load = 0. (Wang et al.,
/// Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts, 2024, arXiv 2408.15664, algorithm 1.)
struct SelectionBiasArgs {
  int64_t experts = 0;
  float* bias = nullptr;
  int32_t* load = nullptr;
  const int64_t* skip = nullptr;
  float speed = 0;
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
inline Work work_of(const Device&, const GroupRouteArgs& a) {
  return {.bytes = bytes_of({a.logits, a.dlogits}, a.rows * a.experts)};
}

struct ExpertsKernels {
  static constexpr const char* kName = "experts";
  static const ExpertsKernels* reference();
  static const ExpertsKernels* cpu();
  static const ExpertsKernels* cuda();

  void (*route_top_k)(ExecutionContext&, const RouteArgs&);
  void (*route_top_k_backward)(ExecutionContext&, const RouteArgs&);
  void (*route_in_groups)(ExecutionContext&, const GroupRouteArgs&);
  void (*route_in_groups_backward)(ExecutionContext&, const GroupRouteArgs&);
  void (*count_choices)(ExecutionContext&, const CountChoicesArgs&);
  void (*update_selection_bias)(ExecutionContext&, const SelectionBiasArgs&);
  void (*sort_by_expert)(ExecutionContext&, const ExpertSortArgs&);
  void (*expand_rows)(ExecutionContext&, const ExpertRowsArgs&);
  void (*combine_rows)(ExecutionContext&, const ExpertRowsArgs&);
  void (*combine_gates_backward)(ExecutionContext&, const ExpertRowsArgs&);
};

namespace ops {

/// The most experts that a row may choose.
inline constexpr int64_t kMostExpertsOfARow = 64;
/// logits [rows, experts]; indices i32 [rows, k], gates f32 [rows, k]. @param normalised whether gates are
/// divided by their sum; by default those of several experts are.
/// @throws InvalidArgument for a k that is not in [1, min(experts, kMostExpertsOfARow)].
void route_top_k(Stream& s, const Tensor& indices, const Tensor& gates, const Tensor& logits,
                 std::optional<bool> normalised = {});
/// Place of a call's rows: row r is row first_row + r of `seq` rows of each sequence.
struct RowsOfSequences {
  int64_t first_row = 0, seq = 1;
  Tensor lengths{};            ///< i32 [sequences] or undefined; as Documents::lengths
  int64_t first_position = 0;  ///< of the rows of each sequence, of which other ranks may have further ones
  int64_t positions = 0;       ///< of each sequence, on all ranks; 0: as many as rows
};
/// Balancing term of route_top_k_backward(): counts i32 [layers, experts] of count_choices(), of all ranks, or undefined for
/// none; the call's layer; RouteArgs::balance; and the call's rows.
struct TopKBalance {
  Tensor counts{};
  int64_t layer = 0;
  float factor = 0;
  RowsOfSequences rows{};
};
/// dgates f32 [rows, k].
void route_top_k_backward(Stream& s, const Tensor& dlogits, const Tensor& dgates, const Tensor& logits,
                          const Tensor& indices, const TopKBalance& balance = {},
                          std::optional<bool> normalised = {});
/// Choice and gates of route_in_groups(); see GroupRouteArgs.
struct GroupChoice {
  int64_t groups = 1, top_groups = 1;
  bool normalised = true;
  float scaling = 1;
};
/// logits [rows, experts]; indices i32 [rows, k], gates f32 [rows, k], bias f32 [experts] or undefined.
/// @throws InvalidArgument for a k that is not in [1, min(experts, kMostExpertsOfARow)]; for groups that do not divide the
/// experts, several groups of one expert, and top_groups outside of [1, groups] or with fewer than k experts.
void route_in_groups(Stream& s, const Tensor& indices, const Tensor& gates, const Tensor& logits,
                     const Tensor& bias, const GroupChoice& choice);
/// dgates f32 [rows, k]; counts i32 [sequences, experts], or undefined (no balancing term).
void route_in_groups_backward(Stream& s, const Tensor& dlogits, const Tensor& dgates, const Tensor& logits,
                              const Tensor& indices, const GroupChoice& choice, const Tensor& counts,
                              float balance, const RowsOfSequences& rows);
/// counts i32 [sequences, experts], or [experts] of all of them together; indices i32 [rows, k].
void count_choices(Stream& s, const Tensor& counts, const Tensor& indices, const RowsOfSequences& rows);
/// bias f32 [experts], load i32 [experts], skip i64 [1] or undefined.
void update_selection_bias(Stream& s, const Tensor& bias, const Tensor& load, float speed,
                           const Tensor& skip = {});
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
