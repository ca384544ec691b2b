#include <sherd/optim/optimizer.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>

#include <sherd/fsdp/weights_change.h>
#include <sherd/kernels/ops/exact_sum.h>
#include <sherd/kernels/ops/ops.h>
#include <sherd/kernels/ops/random.h>
#include <sherd/optim/detail/gradient_sums.h>

namespace sherd {
namespace {

void add(std::vector<std::string>& wrong, const char* whose, std::vector<std::string> problems) {
  for (std::string& problem : problems) wrong.push_back(fmt::format("{}: {}", whose, problem));
}

std::vector<std::string> problems_of(const OptimizerOptions& options) {
  std::vector<std::string> wrong;
  add(wrong, "AdamW", problems_of(options.adamw));
  add(wrong, "Muon", problems_of(options.muon));
  if (!(options.weight_decay >= 0 && std::isfinite(options.weight_decay)))
    wrong.push_back(fmt::format("weight decay {} must be finite and not negative", options.weight_decay));
  return wrong;
}

// What of the routing does not fit the model.
std::vector<std::string> problems_of(const Routing& routing, const ShardRuntime& runtime) {
  std::set<const ParamGroup*> groups;
  for (const ParamGroup* g : runtime.groups()) groups.insert(g);
  std::set<std::pair<const ParamGroup*, int>> seen;
  std::vector<std::string> foreign, frozen, twice, missing, wrong;
  for (const Route& r : routing.routes) {
    if (!r.param.sharded() || !groups.contains(&r.param.group())) {
      foreign.push_back(r.name);
    } else if (!r.param.trainable()) {
      frozen.push_back(r.name);
    } else if (!seen.emplace(&r.param.group(), r.param.index_in_group()).second) {
      twice.push_back(r.name);
    }
  }
  for (const ParamGroup* g : runtime.groups())
    for (auto& p : g->params())
      if (p.trainable() && !seen.contains({g, p.index_in_group()})) missing.push_back(p.name());
  const auto say = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) wrong.push_back(fmt::format("{}: {}", what, fmt::join(names, ", ")));
  };
  say("routes of parameters that this model does not have", foreign);
  say("routes of frozen parameters", frozen);
  say("parameters routed twice", twice);
  say("trainable parameters without a route", missing);
  if (!wrong.empty()) wrong.push_back("give it what route() of this model returned");
  return wrong;
}

// Of all that decides what an update does.
uint64_t digest_of(const Routing& routing, const OptimizerOptions& o) {
  const MuonOptions& m = o.muon;
  const OrthogonalizeOptions& ns = m.orthogonalize;
  std::string text = fmt::format(
      "{} {} {} {} {} | {} {} {} {} {} {} {} {} {} | {} {} {} {}", o.adamw.beta1, o.adamw.beta2, o.adamw.eps,
      o.weight_decay, o.skip_non_finite, m.momentum, m.nesterov, static_cast<int>(m.scale), m.scale_factor,
      static_cast<int>(m.decay), static_cast<int>(m.payload), static_cast<int>(m.mode), static_cast<int>(m.tensor),
      m.allow_inexact, static_cast<int>(ns.method), static_cast<int>(ns.form), static_cast<int>(ns.working), ns.eps);
  for (auto& [a, b, c] : ns.steps) text += fmt::format(" {} {} {}", a, b, c);
  text += fmt::format(" {}", fmt::join(ns.restarts, " "));
  for (const Route& r : routing.routes)
    text += fmt::format("; {} {} {}", r.name, static_cast<int>(r.algorithm), r.decays);
  return hash64(0, text);
}

}  // namespace

Optimizer::Optimizer(Module& root, const Routing& routing, const OptimizerOptions& options)
    : runtime_(runtime_of(root)), alive_(runtime_.weak_from_this()), skip_non_finite_(options.skip_non_finite) {
  std::vector<std::string> wrong = problems_of(options);
  add(wrong, "routing", problems_of(routing, runtime_));
  if (!wrong.empty())
    throw InvalidArgument(
        fmt::format("{}: Optimizer: {}", runtime_.device().label(), fmt::join(wrong, "; ")));
  runtime_.require_equal(
      digest_of(routing, options),
      "Optimizer: the ranks were given different routings or options; give every rank the same");
  std::vector<AdamW::Item> adamw;
  std::vector<Muon::Item> muon;
  std::set<ParamGroup*> with_muon;
  for (auto& r : routing.routes)
    if (r.algorithm == Algorithm::muon) with_muon.insert(&r.param.group());
  for (auto& r : routing.routes) {
    const double decay = r.decays ? options.weight_decay : 0;
    if (r.algorithm == Algorithm::muon) {
      muon.push_back({r.param, decay});
    } else {
      const bool alone = !with_muon.contains(&r.param.group());
      adamw.push_back({r.param, decay, alone});
      if (alone) copied_.insert(&r.param.group());
    }
  }
  adamw_ = std::make_unique<AdamW>(runtime_.device(), std::move(adamw), options.adamw);
  muon_ = std::make_unique<Muon>(runtime_.device(), std::move(muon), options.muon);
  skipped_ = Tensor::empty(runtime_.device(), {1}, DType::i64, MemoryClass::scratch, "gradient norm");
  ops::fill(runtime_.device().compute(), skipped_, 0);
}

void Optimizer::step(double lr) {
  if (alive_.expired())
    throw InvalidArgument(
        "Optimizer::step(): the root module is gone; keep it alive as long as its optimizer");
  if (!(lr >= 0 && std::isfinite(lr)))
    throw InvalidArgument(
        fmt::format("{}: Optimizer::step(): learning rate {} must be finite and not negative",
                    runtime_.device().label(), lr));
  runtime_.require_gradients("Optimizer::step()");
  runtime_.note_alike(std::bit_cast<uint64_t>(lr));
  const Tensor skip = skip_non_finite_ ? skip_of_gradients() : Tensor();
  WeightsChange change(runtime_);
  Stream& stream = runtime_.device().compute();
  ++steps_;
  adamw_->step(stream, lr, skip);
  for (ParamGroup* g : copied_) g->copies_written();
  muon_->step(stream, lr, skip);
  if (skip.defined()) ops::add_words(stream, skipped_, skip);
  change.end();
}

Tensor Optimizer::skip_of_gradients() {
  if (runtime_.skip().defined()) return runtime_.skip();
  Device& device = runtime_.device();
  const GradientSums all = sums_at_once(runtime_);
  const Tensor skip = Tensor::empty(device, {1}, DType::i64, MemoryClass::scratch, "gradient norm");
  const Tensor factor = Tensor::empty(device, {1}, DType::f32, MemoryClass::scratch, "gradient norm");
  const Tensor total =
      Tensor::empty(device, {ExactSum::kWords}, DType::i64, MemoryClass::scratch, "gradient norm");
  ops::clip_factor(device.compute(), factor, total, all.sums, 0, skip);
  compare_served(runtime_, all.served);
  return skip;
}

int64_t Optimizer::skipped() const {
  int64_t count = 0;
  ops::copy_to_host(skipped_.device().compute(), &count, skipped_);
  return count;
}

Tensor Optimizer::copy_skipped() const {
  Tensor host = Tensor::host(skipped_.device(), {1}, DType::i64, MemoryClass::scratch, "metrics");
  ops::copy(skipped_.device().compute(), host, skipped_);
  return host;
}

std::vector<StateTensor> Optimizer::state() const {
  std::vector<StateTensor> all;
  adamw_->collect(all);
  muon_->collect(all);
  return all;
}

std::vector<StateCounter> Optimizer::counters() const {
  std::vector<StateCounter> all;
  adamw_->collect(all);
  return all;
}

}  // namespace sherd
