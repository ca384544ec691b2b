#include <sherd/nn/kernels/experts/experts.h>

#include <fmt/format.h>

#include <sherd/kernels/device/detail/door.h>
#include <sherd/kernels/device/device.h>
#include <sherd/nn/kernels/indices/indices.h>

namespace sherd::ops {

using namespace door;

namespace {

RouteArgs route_args(Check& check, const char* op, const Tensor& indices, const Tensor& logits) {
  check.dims("logits", logits, 2).dims("indices", indices, 2).dtype("logits", logits, kActivations);
  check.dtype("indices", indices, DType::i32).done();
  RouteArgs a{.rows = logits.size(0), .experts = logits.size(1), .k = indices.size(1), .logits = ref(logits)};
  require(a.k >= 1 && a.k <= a.experts && a.k <= kMostExpertsOfARow,
          fmt::format("{}: {} experts for each row out of {}; choose between 1 and {} of at least as many",
                      op, a.k, a.experts, kMostExpertsOfARow));
  check.shape("indices", indices, {a.rows, a.k});
  a.indices = indices.data<int32_t>();
  return a;
}

GroupRouteArgs group_args(Check& check, const char* op, const Tensor& indices, const Tensor& logits,
                          const GroupChoice& choice) {
  const RouteArgs plain = route_args(check, op, indices, logits);
  const int64_t of_group = choice.groups > 0 ? plain.experts / choice.groups : 0;
  require(choice.groups >= 1 && of_group * choice.groups == plain.experts &&
              (choice.groups == 1 || of_group > 1) && choice.top_groups >= 1 &&
              choice.top_groups <= choice.groups && choice.top_groups * of_group >= plain.k,
          fmt::format("{}: {} of {} experts in {} of {} groups; groups must divide the experts, have at "
                      "least two of them, "
                      "and those that a row may choose at least as many as it chooses",
                      op, plain.k, plain.experts, choice.top_groups, choice.groups));
  return {.rows = plain.rows,
          .experts = plain.experts,
          .k = plain.k,
          .groups = choice.groups,
          .top_groups = choice.top_groups,
          .normalised = choice.normalised,
          .scaling = choice.scaling,
          .logits = plain.logits,
          .indices = plain.indices};
}

/// Sets the places of the rows of `a`.
template <class Args>
void set_places(Check& check, Args& a, const RowsOfSequences& at) {
  require(
      at.seq > 0 && at.first_row >= 0,
      fmt::format("rows of sequences: {} rows of a sequence, first row {}; must be positive and not negative",
                  at.seq, at.first_row));
  if (at.lengths.defined()) {
    check.dims("lengths", at.lengths, 1).dtype("lengths", at.lengths, DType::i32);
    check.that(at.first_row + a.rows <= at.lengths.numel() * at.seq,
               fmt::format("lengths are {}, must be [at least {} rows / {}]", to_string(at.lengths.shape()),
                           at.first_row + a.rows, at.seq));
  }
  a.first_row = at.first_row;
  a.seq = at.seq;
  a.first_position = at.first_position;
  if constexpr (requires { a.positions; }) a.positions = at.positions;
  a.lengths = pointer<int32_t>(at.lengths);
}

void check_counts(Check& check, const Tensor& counts, int64_t experts, int64_t rows,
                  const RowsOfSequences& at) {
  check.dims("counts", counts, 2).dtype("counts", counts, DType::i32);
  check.that(counts.size(1) == experts && at.first_row + rows <= counts.size(0) * at.seq,
             fmt::format("counts are {}, must be [at least {} rows / {}, {}]", to_string(counts.shape()),
                         at.first_row + rows, at.seq, experts));
}

ExpertRowsArgs rows_args(Check& check, const Tensor& tokens, const Tensor& copies, const char* name,
                         const Tensor& places) {
  check.dims("tokens", tokens, 2).dims("copies", copies, 2).dtype("tokens", tokens, kActivations).done();
  check.dtype("copies", copies, tokens.dtype()).dtype(name, places, DType::i32);
  const int64_t rows = tokens.size(0), total = copies.size(0);
  check.that(rows == 0 ? total == 0 : total % rows == 0,
             fmt::format("{} copies are not a multiple of {} tokens", total, rows));
  check.that(copies.size(1) == tokens.size(1),
             fmt::format("copies have {} columns, tokens {}", copies.size(1), tokens.size(1)));
  check.count(name, places, total).done();
  return {.rows = rows,
          .slots = rows == 0 ? 1 : total / rows,
          .cols = tokens.size(1),
          .tokens = ref(tokens),
          .copies = ref(copies)};
}

/// Every place is one of the copies.
void check_places(Stream& s, const char* op, const char* name, const int32_t* places,
                  const ExpertRowsArgs& a) {
  const int64_t total = a.rows * a.slots;
  queue(s, op, kernels<IndicesKernels>(s).check_indices, op, name, places, total, total, 0);
}

void set_gates(Check& check, ExpertRowsArgs& a, const Tensor& gates) {
  if (!gates.defined()) return;
  check.dtype("gates", gates, DType::f32).count("gates", gates, a.rows * a.slots).done();
  a.gates = ref(gates);
}

}  // namespace

void route_top_k(Stream& s, const Tensor& indices, const Tensor& gates, const Tensor& logits,
                 std::optional<bool> normalised) {
  Check check("route_top_k");
  RouteArgs a = route_args(check, "route_top_k", indices, logits);
  a.normalised = normalised.value_or(a.k > 1);
  check.dtype("gates", gates, DType::f32).shape("gates", gates, indices.shape()).done();
  a.gates = ref(gates);
  queue(s, "route_top_k", kernels<ExpertsKernels>(s).route_top_k, a);
}

void route_top_k_backward(Stream& s, const Tensor& dlogits, const Tensor& dgates, const Tensor& logits,
                          const Tensor& indices, const TopKBalance& balance, std::optional<bool> normalised) {
  Check check("route_top_k_backward");
  RouteArgs a = route_args(check, "route_top_k_backward", indices, logits);
  a.normalised = normalised.value_or(a.k > 1);
  check.dtype("dgates", dgates, DType::f32).shape("dgates", dgates, indices.shape());
  check.dtype("dlogits", dlogits, kActivations).shape("dlogits", dlogits, logits.shape());
  const Tensor& counts = balance.counts;
  if (counts.defined()) {
    check.dims("counts", counts, 2).dtype("counts", counts, DType::i32);
    check.that(counts.size(1) == a.experts && balance.layer >= 0 && balance.layer < counts.size(0),
               fmt::format("counts are {}, must be [more than {} layers, {}]", to_string(counts.shape()),
                           balance.layer, a.experts));
    set_places(check, a, balance.rows);
    a.layers = counts.size(0);
  }
  check.done();
  a.dgates = ref(dgates);
  a.dlogits = ref(dlogits);
  a.counts = pointer<int32_t>(counts);
  a.layer = balance.layer;
  a.balance = balance.factor;
  queue(s, "route_top_k_backward", kernels<ExpertsKernels>(s).route_top_k_backward, a);
}

void route_in_groups(Stream& s, const Tensor& indices, const Tensor& gates, const Tensor& logits,
                     const Tensor& bias, const GroupChoice& choice) {
  Check check("route_in_groups");
  GroupRouteArgs a = group_args(check, "route_in_groups", indices, logits, choice);
  check.dtype("gates", gates, DType::f32).shape("gates", gates, indices.shape());
  if (bias.defined()) check.dtype("bias", bias, DType::f32).shape("bias", bias, {a.experts});
  check.done();
  a.gates = ref(gates);
  a.bias = pointer<float>(bias);
  queue(s, "route_in_groups", kernels<ExpertsKernels>(s).route_in_groups, a);
}

void route_in_groups_backward(Stream& s, const Tensor& dlogits, const Tensor& dgates, const Tensor& logits,
                              const Tensor& indices, const GroupChoice& choice, const Tensor& counts,
                              float balance, const RowsOfSequences& rows) {
  Check check("route_in_groups_backward");
  GroupRouteArgs a = group_args(check, "route_in_groups_backward", indices, logits, choice);
  check.dtype("dgates", dgates, DType::f32).shape("dgates", dgates, indices.shape());
  check.dtype("dlogits", dlogits, kActivations).shape("dlogits", dlogits, logits.shape());
  set_places(check, a, rows);
  if (counts.defined()) check_counts(check, counts, a.experts, a.rows, rows);
  check.done();
  a.dgates = ref(dgates);
  a.dlogits = ref(dlogits);
  a.counts = pointer<int32_t>(counts);
  a.balance = balance;
  queue(s, "route_in_groups_backward", kernels<ExpertsKernels>(s).route_in_groups_backward, a);
}

void count_choices(Stream& s, const Tensor& counts, const Tensor& indices, const RowsOfSequences& rows) {
  Check check("count_choices");
  check.dims("indices", indices, 2).dtype("indices", indices, DType::i32).done();
  CountChoicesArgs a{.rows = indices.size(0),
                     .experts = counts.size(counts.dim() - 1),
                     .k = indices.size(1),
                     .together = counts.dim() == 1,
                     .indices = indices.data<int32_t>(),
                     .counts = counts.data<int32_t>()};
  set_places(check, a, rows);
  if (a.together)
    check.dtype("counts", counts, DType::i32);
  else
    check_counts(check, counts, a.experts, a.rows, rows);
  check.done();
  queue(s, "count_choices", kernels<IndicesKernels>(s).check_indices, "count_choices", "indices", a.indices,
        indices.numel(), a.experts, 0);
  queue(s, "count_choices", kernels<ExpertsKernels>(s).count_choices, a);
}

void update_selection_bias(Stream& s, const Tensor& bias, const Tensor& load, float speed,
                           const Tensor& skip) {
  Check check("update_selection_bias");
  check.dims("bias", bias, 1).dtype("bias", bias, DType::f32);
  check.dtype("load", load, DType::i32).count("load", load, bias.numel());
  check_skip(check, skip);
  check.done();
  const SelectionBiasArgs a{.experts = bias.numel(),
                            .bias = bias.data<float>(),
                            .load = load.data<int32_t>(),
                            .skip = pointer<int64_t>(skip),
                            .speed = speed};
  queue(s, "update_selection_bias", kernels<ExpertsKernels>(s).update_selection_bias, a);
}

void sort_by_expert(Stream& s, const Tensor& order, const Tensor& position, const Tensor& counts,
                    const Tensor& indices) {
  Check check("sort_by_expert");
  check.dtype("indices", indices, DType::i32).dtype("counts", counts, DType::i32).done();
  check.dtype("order", order, DType::i32).count("order", order, indices.numel());
  check.dtype("position", position, DType::i32).count("position", position, indices.numel()).done();
  const ExpertSortArgs a{.count = indices.numel(),
                         .experts = counts.numel(),
                         .indices = indices.data<int32_t>(),
                         .order = order.data<int32_t>(),
                         .position = position.data<int32_t>(),
                         .counts = counts.data<int32_t>()};
  queue(s, "sort_by_expert", kernels<IndicesKernels>(s).check_indices, "sort_by_expert", "indices", a.indices,
        a.count, a.experts, 0);
  const InOrder in_order(s.device(), s.device().first_use({a.count, a.experts}));  // as embedding_backward()
  queue(s, "sort_by_expert", kernels<ExpertsKernels>(s).sort_by_expert, a);
}

void expand_rows(Stream& s, const Tensor& copies, const Tensor& tokens, const Tensor& order,
                 const Tensor& gates) {
  Check check("expand_rows");
  ExpertRowsArgs a = rows_args(check, tokens, copies, "order", order);
  set_gates(check, a, gates);
  a.order = order.data<int32_t>();
  check_places(s, "expand_rows", "order", a.order, a);
  queue(s, "expand_rows", kernels<ExpertsKernels>(s).expand_rows, a);
}

void combine_rows(Stream& s, const Tensor& tokens, const Tensor& copies, const Tensor& position,
                  const Tensor& gates) {
  Check check("combine_rows");
  ExpertRowsArgs a = rows_args(check, tokens, copies, "position", position);
  set_gates(check, a, gates);
  a.position = position.data<int32_t>();
  check_places(s, "combine_rows", "position", a.position, a);
  queue(s, "combine_rows", kernels<ExpertsKernels>(s).combine_rows, a);
}

void combine_gates_backward(Stream& s, const Tensor& dgates, const Tensor& dtokens, const Tensor& copies,
                            const Tensor& position) {
  Check check("combine_gates_backward");
  ExpertRowsArgs a = rows_args(check, dtokens, copies, "position", position);
  check.dtype("dgates", dgates, DType::f32).count("dgates", dgates, a.rows * a.slots).done();
  a.position = position.data<int32_t>();
  a.dgates = ref(dgates);
  check_places(s, "combine_gates_backward", "position", a.position, a);
  queue(s, "combine_gates_backward", kernels<ExpertsKernels>(s).combine_gates_backward, a);
}

}  // namespace sherd::ops
