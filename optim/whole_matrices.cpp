#include <sherd/optim/whole_matrices.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include <sherd/optim/whole/detail/momentum_team.h>
#include <sherd/optim/whole/plan_text.h>

namespace sherd {
namespace {

// Groups whose matrices travel together: one communicator over all their ranks, sharded over equal
// dimensions.
struct TeamKey {
  const Communicator* ranks;
  std::vector<std::string> sharded;
  std::string tensor;  // the mesh dimension that cuts their matrices, if one does
  bool operator==(const TeamKey&) const = default;
};

// Returns the team of a parameter. Ignored parameters share one team of a single rank. Replicas are in the
// key's ranks, since the plan may spread work over them.
TeamKey key_of(const Parameter& p) {
  const ParamGroup& group = p.group();
  if (group.replicated()) return {nullptr, {}, ""};
  const ShardAxes& axes = group.axes();
  std::vector<std::string> all = axes.state_split;
  all.insert(all.end(), axes.state_repeated.begin(), axes.state_repeated.end());
  const auto& t = p.tensor_shard();
  const bool cut = t && t->parts > 1 && t->dim >= static_cast<int>(p.shape().size()) - 2;
  return {group.mesh().flatten(all).get(), axes.state_split, cut ? t->mesh_dim : ""};
}

std::vector<std::string> problems_of(const MatrixRule& rule, const MomentumOptions& options) {
  std::vector<std::string> wrong = rule.problems();
  for (std::string& problem : sherd::problems_of(options))
    if (std::find(wrong.begin(), wrong.end(), problem) == wrong.end()) wrong.push_back(std::move(problem));
  return wrong;
}

// Returns whether the optimizer keeps anything in UpdateItem::state_dtype. A rule that undoes the decay of its momentum needs
// that exact.
bool rounds_state(const MatrixRule& rule) {
  if (!rule.takes_gradient()) return !rule.keeps_unused();
  const std::vector<MatrixStateSpec> specs = rule.state(64, 64);
  return std::any_of(specs.begin(), specs.end(), [](const MatrixStateSpec& s) { return s.may_be_bf16; });
}

bool has_state(const MatrixRule& rule, const std::vector<UpdateItem>& items) {
  return std::any_of(items.begin(), items.end(), [&](const UpdateItem& item) {
    const Shape& shape = item.param.shape();
    return !rule.state(shape[shape.size() - 2], shape.back()).empty();
  });
}

}  // namespace

UpdateRuleFactory WholeMatrices::factory(const Algorithm& algorithm, const MatrixRuleMaker& make_rule,
                                         const MomentumOptions& o) {
  return {.algorithm = algorithm,
          .settings = to_string(o) + " " + make_rule()->settings(),
          .problems = problems_of(*make_rule(), o),
          .writes_copies = true,
          .heeds_lr_factor = true,
          .heeds_betas = false,
          .heeds_master = true,
          .heeds_state_dtype = rounds_state(*make_rule()),
          .heeds_quantized_state = !make_rule()->takes_gradient() && !make_rule()->keeps_unused(),
          .heeds_grad_dtype = true,
          .heeds_place = true,
          .heeds_gradient_factor = true,
          .make = [=](Device& device, std::vector<UpdateItem> items) {
            return std::make_unique<WholeMatrices>(device, std::move(items), make_rule(), o);
          }};
}

WholeMatrices::WholeMatrices(Device& device, std::vector<UpdateItem> items, std::shared_ptr<MatrixRule> rule,
                             const MomentumOptions& options, MatrixRefinement* refinement)
    : device_(device), rule_(std::move(rule)), streams_(std::make_unique<MatrixStreams>()) {
  std::vector<std::string> wrong;
  for (auto& item : items) {
    const size_t dims = item.param.shape().size();
    if (dims != 2 && dims != 3)
      wrong.push_back(fmt::format("{} {}", item.param.name(), to_string(item.param.shape())));
  }
  if (!wrong.empty())
    throw ShapeMismatch(
        fmt::format("{} updates matrices and stacks of matrices only; route these to AdamW: {}",
                    rule_->name(), fmt::join(wrong, ", ")));

  wrong = problems_of(*rule_, options);
  for (auto& item : items)
    if (item.param.tensor_shard() && item.param.tensor_shard()->size != 0)
      wrong.push_back(fmt::format(
          "{} has {} rows in {} uneven pieces, which {} does not bring together; route it to AdamW",
          item.param.name(), item.param.tensor_shard()->size, item.param.tensor_shard()->parts,
          rule_->name()));
  for (auto& item : items)
    if (!(item.weight_decay >= 0 && std::isfinite(item.weight_decay)))
      wrong.push_back(fmt::format("weight decay {} of {} must be finite and not negative", item.weight_decay,
                                  item.param.name()));
  if (options.tensor == MatrixTensorMode::distributed && has_state(*rule_, items))
    wrong.push_back(
        "tensor-parallel mode distributed computes parts, and a rule with state needs whole matrices; "
        "use duplicated");
  for (auto& item : items)
    for (const std::string& problem : problems_of(item.settings))
      wrong.push_back(fmt::format("{}: {}", item.param.name(), problem));
  if (!wrong.empty()) throw InvalidArgument(fmt::format("{}: {}", rule_->name(), fmt::join(wrong, "; ")));

  std::vector<TeamKey> keys;
  std::vector<std::vector<MomentumTeam::Slot>> slots;
  for (auto& item : items) {
    const TeamKey key = key_of(item.param);
    const size_t team = static_cast<size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin());
    if (team == keys.size()) {
      keys.push_back(key);
      slots.emplace_back();
    }
    // state() returns tensors in the order of the items, for any teams.
    order_.emplace_back(team, slots[team].size());
    slots[team].push_back({item.param, item.weight_decay,
                           rule_->takes_gradient()
                               ? RestState()
                               : item.make_state(device, "momentum_buffer", StateCode::linear),
                           item.state_place, item.windows.get(), item.settings.lr_factor, order_.size() - 1,
                           item.writes_copy, item.state_dtype});
  }
  if (!slots.empty()) {
    // High priority: messages must not wait behind the matrix products that they overlap.
    streams_->in = device.make_stream(rule_->label() + " in", StreamPriority::high);
    streams_->out = device.make_stream(rule_->label() + " out", StreamPriority::high);
  }
  for (auto& list : slots) {
    // Collective: teams are made in the order of the items, which is the same on all ranks.
    teams_.push_back(
        std::make_unique<MomentumTeam>(device, std::move(list), *rule_, options, *streams_, refinement));
    plans_.push_back(teams_.back()->team().plan());
  }
}

WholeMatrices::~WholeMatrices() {
  if (std::uncaught_exceptions() <= exceptions_before_) return;
  // The side streams end after this, in ~MatrixStreams. Without the abort they would wait for peers that
  // never join.
  for (auto& team : teams_) team->team().abort("an error ended its training; its own message tells which");
}

void WholeMatrices::step(Stream& compute, double lr, const Tensor& skip) {
  const Tensor factor = take_gradient_factor();
  // One team after the other on all ranks. Teams share the side streams, so different orders could deadlock.
  for (auto& team : teams_) team->step(compute, lr, skip, factor);
}

void WholeMatrices::require_sound() {
  for (auto& team : teams_) team->require_sound();
}

std::vector<StateTensor> WholeMatrices::state() const {
  std::vector<StateTensor> out;
  if (rule_->takes_gradient()) return out;
  for (auto& [team, slot] : order_) {
    const MomentumTeam::Slot& s = teams_[team]->slots()[slot];
    out.push_back(state_tensor(s.param, "momentum_buffer", s.momentum));
  }
  return out;
}

std::vector<StateCounter> WholeMatrices::counters() const {
  std::vector<StateCounter> out;
  for (auto& [team, slot] : order_) {
    const MomentumTeam::Slot& s = teams_[team]->slots()[slot];
    if (s.updates.defined()) out.push_back({s.param, "updates", s.updates});
  }
  return out;
}

std::vector<OwnedState> WholeMatrices::owned_state() const {
  std::vector<OwnedState> out;
  for (auto& team : teams_) out.insert(out.end(), team->states().all().begin(), team->states().all().end());
  return out;
}

std::string WholeMatrices::explain() const {
  if (teams_.empty()) return fmt::format("{0} plan: no parameter goes to {0}\n", rule_->name());
  std::string text;
  for (auto& team : teams_) {
    if (teams_.size() > 1) text += fmt::format("{}{}\n", text.empty() ? "" : "\n", team->team().describe());
    text += sherd::explain(team->team().plan(), *rule_, team->team().matrices());
  }
  return text;
}

std::vector<Tensor> WholeMatrices::copy_statuses() {
  std::vector<Tensor> statuses;
  for (auto& team : teams_) statuses.push_back(team->team().copy_statuses(device_.compute()));
  return statuses;
}

std::vector<std::pair<std::string, MatrixStatus>> WholeMatrices::report(
    const std::vector<Tensor>& statuses) const {
  std::vector<std::pair<std::string, MatrixStatus>> all;
  for (size_t i = 0; i < teams_.size(); ++i) {
    const auto more = teams_[i]->team().report(statuses[i]);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

std::vector<std::pair<std::string, MatrixStatus>> WholeMatrices::report() {
  const std::vector<Tensor> statuses = copy_statuses();
  device_.compute().synchronize();
  return report(statuses);
}

}  // namespace sherd
