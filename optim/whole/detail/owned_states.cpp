#include <sherd/optim/whole/detail/owned_states.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <sherd/fsdp/group.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

/// Adds the errors of a matrix's state to `wrong`.
void check_specs(const LogicalMatrix& m, const std::vector<MatrixStateSpec>& specs,
                 std::vector<std::string>& wrong) {
  std::set<std::string> seen;
  for (const auto& [key, shape, may_be_bf16] : specs) {
    if (key.empty() || key.find_first_of(".[]") != std::string::npos)
      wrong.push_back(fmt::format("key '{}' must be a word without a dot or bracket", key));
    if (!seen.insert(key).second)
      wrong.push_back(fmt::format("key '{}' occurs twice for {}", key, m.label()));
    if (shape.empty() || std::any_of(shape.begin(), shape.end(), [](int64_t n) { return n <= 0; }))
      wrong.push_back(fmt::format("'{}' of {} has shape {}, where every size must be at least 1", key,
                                  m.label(), to_string(shape)));
  }
}

}  // namespace

OwnedStates::OwnedStates(Device& device, const std::vector<Parameter>& params,
                         const std::vector<StateForm>& forms, const MatrixTeam& team, const MatrixRule& rule)
    : places_(team.matrices().size()) {
  std::map<std::pair<size_t, std::string>, std::vector<int>> groups;  // by parameter and LogicalMatrix::stack
  std::vector<std::string> wrong;
  for (int i = 0; i < static_cast<int>(places_.size()); ++i) {
    const LogicalMatrix& m = team.matrices()[static_cast<size_t>(i)];
    std::vector<int>& group = groups[{team.param_of(i), m.stack}];
    if (group.empty()) check_specs(m, rule.state(m.whole_rows(), m.whole_cols()), wrong);
    group.push_back(i);
  }
  if (!wrong.empty())
    throw InvalidArgument(
        fmt::format("{}: state of whole matrices: {}", rule.name(), fmt::join(wrong, "; ")));
  for (const auto& [whose, matrices] : groups) {
    const LogicalMatrix& m = team.matrices()[static_cast<size_t>(matrices.front())];
    add(device, params[whose.first], forms[whose.first], team, matrices,
        rule.state(m.whole_rows(), m.whole_cols()));
  }
}

void OwnedStates::add(Device& device, const Parameter& p, const StateForm& form, const MatrixTeam& team,
                      const std::vector<int>& matrices, const std::vector<MatrixStateSpec>& specs) {
  const size_t first = all_.size();
  std::vector<int64_t> here;
  bool saves = true;
  for (const int i : matrices) {
    if (!team.computes(i)) continue;
    places_[static_cast<size_t>(i)] = {first, specs.size(), here.size()};
    here.push_back(team.matrices()[static_cast<size_t>(i)].stack_index);
    saves = saves && team.speaks_for(i);
  }
  // Ignored parameters are on every rank, each with its own values: the first rank's count.
  if (p.group().replicated()) saves = p.group().axes().holders_of(p.tensor_shard()).index == 0;
  const LogicalMatrix& first_matrix = team.matrices()[static_cast<size_t>(matrices.front())];
  for (const auto& [key, shape, may_be_bf16] : specs) {
    OwnedState s{.param = p,
                 .key = first_matrix.stack.empty() ? key : key + "[" + first_matrix.stack + "]",
                 .matrices = here,
                 .repeated = team.repeated_over(matrices.front()),
                 .saves = saves};
    if (first_matrix.stack_size > 0) s.shape.push_back(first_matrix.stack_size);
    s.shape.insert(s.shape.end(), shape.begin(), shape.end());
    s.local = make_state(device, form.place, static_cast<int64_t>(here.size()) * numel_of(shape),
                         may_be_bf16 ? form.dtype : DType::f32, key);
    if (form.windows != nullptr) form.windows->announce(s.local);
    all_.push_back(std::move(s));
    shapes_.push_back(shape);
  }
  for (const int i : matrices)
    if (form.windows != nullptr && team.computes(i)) form.windows->announce_together(of(i));
}

std::vector<Tensor> OwnedStates::of(int matrix) const {
  const Place& place = places_[static_cast<size_t>(matrix)];
  std::vector<Tensor> tensors;
  for (size_t k = place.first; k < place.first + place.count; ++k) {
    const int64_t n = numel_of(shapes_[k]), at = static_cast<int64_t>(place.index) * n;
    tensors.push_back(all_[k].local.flat(at, at + n).view(shapes_[k]));
  }
  return tensors;
}

}  // namespace sherd
