#include "listed_model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <system_error>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/nn/nn.h>
#include <sherd/optim/role.h>

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;
using nn::Var;

constexpr int64_t kLogitsRows = 1024;  // as CausalModelOptions::logits_chunk

/// Marks of names, for listed_routes().
constexpr const char* kMuonMark = "muon:";
constexpr const char* kAdamwMark = "adamw:";

std::vector<Role> roles_of(const std::vector<ParamEntry>& params) {
  std::vector<RoleQuestion> questions;
  for (const ParamEntry& p : params)
    questions.push_back({.name = p.name, .shape = p.shape, .matrices = !p.blocks.empty()});
  std::vector<Role> roles;
  for (const RoleGuess& g : guess_roles(questions)) roles.push_back(g.role);
  return roles;
}

/// One parameter's part in a token's forward.
struct ListedUse {
  int64_t out = 0;       // columns of the output
  int64_t products = 0;  // elements that a token is multiplied by; 0: none
  int64_t active = 0;    // elements that a token meets
  bool last = false;     // the head: logits of kLogitsRows exist at once, and no output is kept
};

ListedUse use_of(const ParamEntry& p, Role role, int64_t top_k) {
  const int64_t elements = numel_of(p.shape);
  if (p.shape.size() < 2) return {.out = elements, .active = elements};
  if (p.shape.size() > 2) {
    const int64_t taken = std::min(top_k, p.shape[0]), one = p.shape[0] > 0 ? elements / p.shape[0] : 0;
    return {.out = taken * p.shape[1], .products = taken * one, .active = taken * one};
  }
  const bool looked_up = role == Role::embedding;
  return {.out = looked_up ? p.shape[1] : p.shape[0],
          .products = looked_up && !p.tied ? 0 : elements,
          .active = elements,
          .last = role == Role::head};
}

std::vector<ListedUse> uses_of(const ListedModel& model) {
  const std::vector<Role> roles = roles_of(model.params);
  std::vector<ListedUse> uses;
  for (size_t i = 0; i < roles.size(); ++i) uses.push_back(use_of(model.params[i], roles[i], model.top_k));
  return uses;
}

/// Queues an operation that is counted and has no kernel. @throws NotSupported on a device that is not dry.
void count_operation(Stream& s, Operation what, const Work& work) {
  if (!s.device().dry()) throw NotSupported("a model of a list has no kernels; use sherd plan");
  s.expect(work);
  s.submit(what, [](ExecutionContext&) {});
}

Tensor activation_of(const Tensor& beside, Shape shape, DType dtype) {
  return Tensor::empty(beside.device(), std::move(shape), dtype, "activations");
}

/// Queues the use of a parameter: a product where it has one, else a pass over the activations.
Var use(const Var& x, const Parameter& p, const ListedUse& u, int64_t rows) {
  const Tensor in = x.value();
  const auto work = [=, of = p](double passes, DType dtype) {
    const int64_t bytes = (2 * rows * u.out + of.numel()) * size_of(dtype);
    return Work{.flops = 2 * passes * static_cast<double>(rows) * static_cast<double>(u.products),
                .bytes = static_cast<int64_t>(passes) * bytes,
                .dtype = dtype};
  };
  const Operation what = u.products > 0 ? Operation("gemm", WorkKind::product) : "elementwise";
  return nn::function(
      {x},
      [&](Stream& s) {
        const DType dtype = p.data().dtype();
        count_operation(s, what, work(1, dtype));
        if (!u.last) return activation_of(in, {rows, u.out}, dtype);
        (void)activation_of(in, {std::min(rows, kLogitsRows), u.out}, dtype);
        return activation_of(in, {rows, 1}, DType::f32);
      },
      [=](Stream& s, const nn::BackwardCall& call) -> std::vector<nn::Gradient> {
        (void)p.grad_for_overwrite();
        count_operation(s, what, work(2, p.data().dtype()));
        if (!call.wants(0)) return {nn::Gradient()};
        return {activation_of(in, in.shape(), in.dtype())};
      },
      {p}, "planned parameter");
}

/// Parameters of a unit, in the order of the list.
class ListedUnit : public nn::Module<ListedUnit> {
 public:
  void add(const ParamEntry& e, const ListedUse& u) {
    const char* const mark = e.optimizer == Algorithm::muon ? kMuonMark : kAdamwMark;
    Parameter p = param(mark + e.name, e.shape, constant(0));
    if (!e.blocks.empty()) p.set_row_blocks(e.blocks);
    if (e.master != Master::f32) p.set_compute_dtype(DType::bf16).set_master(e.master);
    uses_.emplace_back(p, u);
  }
  Var forward(Var x, int64_t rows) {
    for (const auto& [p, u] : uses_) x = use(x, p, u, rows);
    return x;
  }

 private:
  std::vector<std::pair<Parameter, ListedUse>> uses_;
};

class ListedCausalModel final : public nn::CausalModel {
 public:
  explicit ListedCausalModel(const ListedModel& model) {
    const std::vector<ListedUse> uses = uses_of(model);
    std::map<std::string, ListedUnit*> by_name;
    for (size_t i = 0; i < uses.size(); ++i)
      unit_of(model.params[i].unit, by_name).add(model.params[i], uses[i]);
    child("first", first_);
    for (size_t i = 0; i < units_.size(); ++i) child(fmt::format("unit{}", i), *units_[i]);
    child("last", last_);
  }

  nn::CrossEntropy forward(const Var& tokens, const Tensor&, nn::ObjectiveScale, const nn::Documents&,
                           const nn::NextTokens&) override {
    const Tensor ids = tokens.value();
    const int64_t rows = ids.numel();
    Var x = first_(tokens, rows);
    for (const auto& unit : units_) x = (*unit)(x, rows);
    x = last_(x, rows);
    return {nn::sum(nn::cast(x, DType::f32)), activation_of(ids, {rows}, DType::f32)};
  }
  Tensor forward(const Tensor&) override { throw NotSupported("a model of a list has no logits"); }
  size_t blocks() const override { return units_.size(); }
  ModuleBase& block(size_t i) override { return *units_[i]; }
  ModuleBase* experts(size_t) override { return nullptr; }
  void set_recompute(bool on, Place arguments) override {
    for (const auto& unit : units_) unit->set_recompute(on, arguments);
  }

 private:
  /// "root" before the first unit is used first, behind it last.
  ListedUnit& unit_of(const std::string& name, std::map<std::string, ListedUnit*>& by_name) {
    if (name == "root") return units_.empty() ? first_ : last_;
    ListedUnit*& unit = by_name[name];
    if (unit == nullptr) unit = units_.emplace_back(std::make_unique<ListedUnit>()).get();
    return *unit;
  }

  ListedUnit first_, last_;
  std::vector<std::unique_ptr<ListedUnit>> units_;
};

/// Returns the parts of a name up to its first number; "root" without one.
std::string unit_named(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    if (end > begin && name.find_first_not_of("0123456789", begin) >= end) return name.substr(0, end);
    begin = end + 1;
  }
  return "root";
}

std::vector<ParamEntry> from_headers(const fs::path& path) {
  std::vector<ParamEntry> params;
  for (const CheckpointTensor& t : scan_safetensors(path).tensors)
    params.push_back({.name = t.name, .shape = t.shape, .dtype = t.dtype, .unit = unit_named(t.name)});
  const std::vector<Role> roles = roles_of(params);
  for (size_t i = 0; i < params.size(); ++i)
    if (roles[i] == Role::hidden) params[i].optimizer = Algorithm::muon;
  return params;
}

}  // namespace

std::vector<ParamEntry> read_listed(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored) || path.extension() == ".safetensors") return from_headers(path);
  return read_params(path.string());
}

TokenWork token_work(const ListedModel& model) {
  TokenWork work;
  for (const ListedUse& u : uses_of(model)) work.weights += u.products;
  return work;
}

train_gpt::ParameterCount count_parameters(const ListedModel& model) {
  train_gpt::ParameterCount count;
  for (const ParamEntry& p : model.params) count.all += numel_of(p.shape);
  for (const ListedUse& u : uses_of(model)) count.active += u.active;
  return count;
}

std::string listed_routes(const ListedModel& model, const std::string& matrices) {
  // A rule that decides about no parameter is refused.
  std::string rules;
  const auto add = [&](const char* mark, bool muon, const std::string& optimizer) {
    if (std::ranges::any_of(model.params,
                            [&](const ParamEntry& e) { return (e.optimizer == Algorithm::muon) == muon; }))
      rules += fmt::format("(^|[.]){}={};", mark, optimizer);
  };
  add(kMuonMark, true, matrices);
  add(kAdamwMark, false, "adamw");
  return rules;
}

std::unique_ptr<nn::CausalModel> listed_model(const ListedModel& model) {
  return std::make_unique<ListedCausalModel>(model);
}

}  // namespace sherd::tools
