#include <sherd/optim/optimizer.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include <sherd/fsdp/weights_change.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/random/random.h>
#include <sherd/kernels/squares/exact_sum.h>
#include <sherd/optim/detail/gradient_sums.h>
#include <sherd/optim/weight_average.h>

namespace sherd {
namespace {

void add(std::vector<std::string>& wrong, const std::string& whose, std::vector<std::string> problems) {
  for (std::string& problem : problems) wrong.push_back(fmt::format("{}: {}", whose, problem));
}

// AdamW, Muon, and the program's own.
std::vector<UpdateRuleFactory> factories_of(const OptimizerOptions& options) {
  std::vector<UpdateRuleFactory> all = {AdamW::factory(options.adamw), Muon::factory(options.muon)};
  all.insert(all.end(), options.further.begin(), options.further.end());
  return all;
}

// Collects all problems of the options, so that one error lists them together.
std::vector<std::string> problems_of(const OptimizerOptions& options,
                                     const std::vector<UpdateRuleFactory>& factories) {
  std::vector<std::string> wrong, twice, idle;
  for (size_t i = 0; i < factories.size(); ++i) {
    const UpdateRuleFactory& f = factories[i];
    add(wrong, title_of(f.algorithm), f.problems);
    if (!f.make) idle.push_back(name_of(f.algorithm));
    for (size_t k = 0; k < i; ++k)
      if (factories[k].algorithm == f.algorithm) twice.push_back(name_of(f.algorithm));
  }
  if (!twice.empty())
    wrong.push_back(fmt::format("names that two optimizers have: {}", fmt::join(twice, ", ")));
  if (!idle.empty())
    wrong.push_back(fmt::format("optimizers that nothing makes (UpdateRuleFactory::make is empty): {}",
                                fmt::join(idle, ", ")));
  if (!(options.weight_decay >= 0 && std::isfinite(options.weight_decay)))
    wrong.push_back(fmt::format("weight decay {} must be finite and not negative", options.weight_decay));
  if (!is_state_dtype(options.state_dtype))
    wrong.push_back(fmt::format("state dtype {} (use f32, bf16 or i8)", name_of(options.state_dtype)));
  if (!(options.ema_decay >= 0 && options.ema_decay < 1))
    wrong.push_back(fmt::format("ema decay {} must lie in [0, 1)", options.ema_decay));
  if (options.ema_dtype != DType::f32 && options.ema_dtype != DType::bf16)
    wrong.push_back(fmt::format("ema dtype {} (use f32 or bf16)", name_of(options.ema_dtype)));
  return wrong;
}

// Returns how the routing does not fit the model. Every trainable parameter needs exactly one route, unless
// the routing is partial.
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
      if (p.trainable() && !routing.partial && !seen.contains({g, p.index_in_group()}))
        missing.push_back(p.name());
  const auto say = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) wrong.push_back(fmt::format("{}: {}", what, fmt::join(names, ", ")));
  };
  say("routes of parameters that this model does not have", foreign);
  say("routes of frozen parameters", frozen);
  say("parameters routed twice", twice);
  say("trainable parameters without a route", missing);
  if (!wrong.empty()) wrong.push_back("give it what route() of this model returned, or a part() of it");
  return wrong;
}

// Routes to optimizers that are not among those given.
std::vector<std::string> unknown_in(const Routing& routing, const std::vector<UpdateRuleFactory>& factories) {
  std::vector<std::string> unknown, wrong;
  for (const Route& r : routing.routes) {
    const auto makes = [&](const UpdateRuleFactory& f) { return f.algorithm == r.algorithm; };
    if (std::none_of(factories.begin(), factories.end(), makes))
      unknown.push_back(fmt::format("{} ({})", r.name, name_of(r.algorithm)));
  }
  if (!unknown.empty())
    wrong.push_back(
        fmt::format("routes to optimizers that do not exist: {}; give them by OptimizerOptions::further",
                    fmt::join(unknown, ", ")));
  return wrong;
}

// Parameters without blocks of 8-bit state keep 16 bits.
DType state_dtype_of(const Route& r, const OptimizerOptions& o) {
  const DType dtype = r.settings.state_dtype.value_or(o.state_dtype);
  return dtype == DType::i8 && r.param.state_block() == 0 ? DType::bf16 : dtype;
}

Place state_place_of(const Route& r, const OptimizerOptions& o) {
  return r.settings.state_place.value_or(o.state_place);
}

// Returns how ranks' pieces cut blocks of 8-bit state, the same on every rank; "" where none does.
std::string cut_blocks_of(const Parameter& p) {
  const int64_t block = p.state_block();
  if (const auto& cut = p.tensor_shard(); cut && cut->parts > 1 &&
                                          cut->dim + 1 == static_cast<int>(p.shape().size()) &&
                                          p.shape().back() % block != 0)
    return fmt::format(
        "tensor parallelism cuts its rows into pieces of {} elements, inside of blocks of {}: give it "
        "another "
        "state dtype by a routing rule",
        p.shape().back(), block);
  const ShardLayout& layout = *p.group().plan().layout;
  for (int r = 0; r < layout.world(); ++r)
    if (const ParamRange piece = layout.piece(ParamId(p.index_in_group()), RankId(r));
        piece.begin.value % block != 0)
      return fmt::format(
          "the piece of rank {} begins inside of a block of {}: set FullyShardOptions::whole_state_blocks", r,
          block);
  return "";
}

bool rests_on_host(const Route& r, const OptimizerOptions& o) {
  return state_place_of(r, o) == Place::host || r.param.shard().place() == Place::host ||
         r.param.shard_low().place() == Place::host;
}

// Returns rest forms that an optimizer does not have, in one line for each.
std::vector<std::string> unheeded_forms(const Routing& routing, const OptimizerOptions& o,
                                        const std::vector<UpdateRuleFactory>& factories) {
  std::vector<std::string> wrong;
  for (const UpdateRuleFactory& f : factories) {
    std::vector<std::string> states, codes, masters, places, gradients;
    std::map<std::string, std::vector<std::string>> cuts;  // by what cuts blocks
    for (const Route& r : routing.routes) {
      if (f.algorithm != r.algorithm || !r.param.sharded()) continue;
      const DType state = state_dtype_of(r, o);
      if (!f.heeds_state_dtype && state != DType::f32) {
        states.push_back(r.name);
      } else if (state == DType::i8 && !f.heeds_quantized_state) {
        codes.push_back(r.name);
      } else if (const std::string cut = state == DType::i8 ? cut_blocks_of(r.param) : ""; !cut.empty()) {
        cuts[cut].push_back(r.name);
      }
      if (!f.heeds_master && r.param.group().plan().master != Master::f32) masters.push_back(r.name);
      if (!f.heeds_place && rests_on_host(r, o)) places.push_back(r.name);
      if (!f.heeds_grad_dtype && r.param.group().plan().grad_dtype != DType::f32) gradients.push_back(r.name);
    }
    const auto more_of = [](const std::vector<std::string>& names) {
      return names.size() == 1 ? "" : fmt::format(" and {} more", names.size() - 1);
    };
    for (const auto& [cut, names] : cuts)
      wrong.push_back(fmt::format("state of '{}'{} in i8: {}", names.front(), more_of(names), cut));
    const auto say = [&](const std::vector<std::string>& names, const char* what, const char* remedy) {
      if (names.empty()) return;
      wrong.push_back(
          fmt::format("{} has {}, for {}{}; leave out {}, or give these another by a routing rule",
                      title_of(f.algorithm), what, names.front(), more_of(names), remedy));
    };
    say(gradients, "gradients in f32 alone", "FullyShardOptions::grad_dtype");
    say(states, "state in f32 alone", "OptimizerOptions::state_dtype");
    say(codes, "no state in 8 bits", "i8 of OptimizerOptions::state_dtype");
    say(masters, "master weights in f32 alone", "FullyShardOptions::master");
    say(places, "state and masters on the device alone",
        "OptimizerOptions::state_place and FullyShardOptions::master_place");
  }
  return wrong;
}

// Returns settings that the parameter's optimizer ignores. An ignored learning rate or beta would be a silent
// error.
std::vector<std::string> unheeded_in(const Routing& routing,
                                     const std::vector<UpdateRuleFactory>& factories) {
  std::vector<std::string> wrong;
  for (const Route& r : routing.routes) {
    for (const std::string& problem : problems_of(r.settings))
      wrong.push_back(fmt::format("{}: {}", r.name, problem));
    for (const UpdateRuleFactory& f : factories) {
      if (f.algorithm != r.algorithm) continue;
      if (!f.heeds_lr_factor && r.settings.lr_factor != 1)
        wrong.push_back(fmt::format("{} has a learning rate factor, which {} does not heed", r.name,
                                    title_of(f.algorithm)));
      if (!f.heeds_betas && r.settings.has_betas())
        wrong.push_back(fmt::format("{} has its own betas or eps, which {} does not heed", r.name,
                                    title_of(f.algorithm)));
    }
  }
  return wrong;
}

// Returns a digest of all that an update depends on. Ranks with different digests would update their pieces
// by different rules; the constructor compares them.
uint64_t digest_of(const Routing& routing, const OptimizerOptions& o,
                   const std::vector<UpdateRuleFactory>& factories) {
  std::string text = fmt::format("{} {} {} {} {} {} {} {}", o.weight_decay, o.skip_non_finite,
                                 routing.partial, name_of(o.state_dtype), name_of(o.state_place),
                                 o.window_bytes, o.ema_decay, name_of(o.ema_dtype));
  for (const UpdateRuleFactory& f : factories)
    text += fmt::format(" | {}: {}", name_of(f.algorithm), f.settings);
  for (const Route& r : routing.routes)
    text += fmt::format("; {} {} {} {}", r.name, name_of(r.algorithm), r.decays, to_string(r.settings));
  return hash64(0, text);
}

}  // namespace

Tensor UpdateItem::make_state(Device& device, std::string_view key) const {
  const DType dtype = state_dtype == DType::i8 ? DType::bf16 : state_dtype;
  const Tensor t = sherd::make_state(device, state_place, param.shard_range().size(), dtype, key);
  if (windows) windows->announce(t);
  return t;
}

RestState UpdateItem::make_state(Device& device, std::string_view key, StateCode code) const {
  if (state_dtype != DType::i8) return make_state(device, key);
  const int64_t count = param.shard_range().size(), block = param.state_block();
  if (block == 0 || !windows)
    throw InvalidArgument(
        fmt::format("state '{}' of '{}' in 8 bits: {}", key, param.name(),
                    block == 0 ? "its shape has no blocks; use bf16" : "UpdateItem::windows is null"));
  const RestState state(sherd::make_state(device, state_place, count, dtype_of(code), key),
                        sherd::make_state(device, state_place, count / block, DType::f32, key), code, block);
  windows->announce(state);
  return state;
}

Optimizer::Optimizer(ModuleBase& root, const Routing& routing, const OptimizerOptions& options)
    : runtime_(runtime_of(root)),
      alive_(runtime_.weak_from_this()),
      skip_non_finite_(options.skip_non_finite) {
  const std::vector<UpdateRuleFactory> factories = factories_of(options);
  std::vector<std::string> wrong = problems_of(options, factories);
  add(wrong, "routing", problems_of(routing, runtime_));
  add(wrong, "routing", unknown_in(routing, factories));
  add(wrong, "routing", unheeded_in(routing, factories));
  add(wrong, "rest forms", unheeded_forms(routing, options, factories));
  if (!wrong.empty())
    throw InvalidArgument(
        fmt::format("{}: Optimizer: {}", runtime_.device().label(), fmt::join(wrong, "; ")));
  std::vector<Parameter> params;
  for (const Route& r : routing.routes) params.push_back(r.param);
  // Claims the parameters: two optimizers of one root cannot update the same one.
  updates_ = std::make_unique<UpdateSet>(runtime_.update_sets(), params);
  // Before make_rules(): rules make communicators, for which ranks with other routings would wait.
  runtime_.require_equal(
      digest_of(routing, options, factories),
      "Optimizer: the ranks were given different routings or options; give every rank the same");
  make_rules(routing, options, factories);
  // Counted on the device, so that step() does not wait for it.
  skipped_ = Tensor::empty(runtime_.device(), {1}, DType::i64, MemoryClass::scratch, "gradient norm");
  ops::fill(runtime_.device().compute(), skipped_, 0);
}

// Gives each rule its parameters. One rule is made for each factory, also without parameters: its state is
// empty then.
void Optimizer::make_rules(const Routing& routing, const OptimizerOptions& options,
                           const std::vector<UpdateRuleFactory>& factories) {
  const auto factory_of = [&](const Route& r) {
    return std::find_if(factories.begin(), factories.end(),
                        [&](auto& f) { return f.algorithm == r.algorithm; });
  };
  // A group rounds all of its weights or none: a copy is worth writing only where every parameter's rule does
  // it.
  std::set<ParamGroup*> rounded_later;
  for (const Route& r : routing.routes)
    if (!factory_of(r)->writes_copies || !updates_->holds_all_of(r.param.group()))
      rounded_later.insert(&r.param.group());
  if (std::any_of(routing.routes.begin(), routing.routes.end(), [&](const Route& r) {
        return rests_on_host(r, options) || state_dtype_of(r, options) == DType::i8;
      }))
    windows_ = std::make_shared<RestWindows>(runtime_.device(), options.window_bytes);
  std::vector<std::vector<UpdateItem>> items(factories.size());
  std::vector<UpdateItem> averaged;
  for (const Route& r : routing.routes) {
    const bool writes_copy = !rounded_later.contains(&r.param.group());
    if (writes_copy) copied_.insert(&r.param.group());
    UpdateItem item{r.param,
                    r.settings.weight_decay.value_or(r.decays ? options.weight_decay : 0),
                    writes_copy,
                    r.settings,
                    state_dtype_of(r, options),
                    state_place_of(r, options),
                    windows_};
    if (options.ema_decay > 0) averaged.push_back(item);
    items[static_cast<size_t>(factory_of(r) - factories.begin())].push_back(std::move(item));
    if (!windows_) continue;
    windows_->announce(r.param.shard());
    windows_->announce(r.param.shard_low());
  }
  for (size_t i = 0; i < factories.size(); ++i) {
    std::vector<Parameter> params;
    for (const UpdateItem& item : items[i]) params.push_back(item.param);
    rules_.push_back({factories[i].algorithm, factories[i].make(runtime_.device(), std::move(items[i])),
                      factories[i].heeds_gradient_factor, std::move(params)});
  }
  if (options.ema_decay > 0) {
    average_ = std::make_shared<WeightAverage>(runtime_.device(), std::move(averaged), options.ema_decay,
                                               options.ema_dtype);
    updates_->on_weights_replaced([average = average_.get()] { average->restart(); });
  }
  if (windows_) windows_->allocate();
}

UpdateRule& Optimizer::rule(const Algorithm& algorithm) const {
  for (const Rule& r : rules_)
    if (r.algorithm == algorithm) return *r.update;
  throw InvalidArgument(fmt::format("{}: Optimizer::rule(): no parameter is routed to optimizer '{}'",
                                    runtime_.device().label(), name_of(algorithm)));
}

ShardRuntime& Optimizer::runtime() const {
  if (alive_.expired())
    throw InvalidArgument("Optimizer: the root module is gone; keep it alive as long as its optimizer");
  return runtime_;
}

// Steps that run after the rules and change weights again, such as QK-Clip. They invalidate rounded copies
// of these weights.
void Optimizer::after_update(std::shared_ptr<AfterUpdate> more) {
  std::vector<std::string> others;
  for (const Parameter& p : more->changed())
    if (!updates_->holds(p)) others.push_back(p.name());
  if (!others.empty())
    throw InvalidArgument(
        fmt::format("{}: Optimizer::after_update(): parameters that this optimizer does not update: {}",
                    runtime().device().label(), fmt::join(others, ", ")));
  for (const Parameter& p : more->changed()) {
    copied_.erase(&p.group());  // a copy made before is of no use
    after_writes_host_ = after_writes_host_ || p.group().plan().master_place == Place::host;
  }
  more->use_counters(counters());
  after_.push_back(std::move(more));
}

void Optimizer::require_sound() const {
  for (const Rule& r : rules_) r.update->require_sound();
}

void Optimizer::zero_grad() { runtime().zero_grad(updates_.get()); }

// Called by every rank at the same point. The host only issues: whether the step is skipped is decided on
// the device by `skip`, which every kernel of the update reads.
void Optimizer::step(double lr) {
  runtime();
  if (!(lr >= 0 && std::isfinite(lr)))
    throw InvalidArgument(
        fmt::format("{}: Optimizer::step(): learning rate {} must be finite and not negative",
                    runtime_.device().label(), lr));
  // Checked before anything changes: after an error the weights, the states and the step count are as
  // before.
  runtime_.require_all_in_sets("Optimizer::step()");
  runtime_.require_gradients("Optimizer::step()", updates_.get());
  // The learning rate joins the values that ranks compare; different rates would make their weights differ.
  runtime_.note_alike(std::bit_cast<uint64_t>(lr));
  const Tensor skip = skip_non_finite_ ? skip_of_gradients() : Tensor();
  // An exception between begin_update() and end() marks the weights as torn.
  WeightsChange change(runtime_, *updates_);
  Stream& stream = runtime_.device().compute();
  change.begin_update();
  // Counted at the call, skipped or not: the device alone decides whether the step is skipped.
  ++steps_;
  apply_gradient_factor();
  // In the order of the factories on all ranks, since rules have collectives.
  RestStep passes(windows_.get(), stream, runtime_.state_ready());
  for (const Rule& r : rules_) r.update->step(stream, lr, skip);
  passes.end();
  // The group then skips its own conversion from master weights to the compute dtype.
  for (ParamGroup* g : copied_) g->copies_written();
  if (after_writes_host_) runtime_.device().wait_for_tier_reads(stream);
  for (auto& more : after_) more->apply(stream, skip);
  if (average_) average_->update(stream, steps_, skip);
  note_steps();
  // The flag is 0 or 1, so the counter on the device adds up skipped steps.
  if (skip.defined()) ops::add_words(stream, skipped_, skip);
  change.end();
}

void Optimizer::note_steps() {
  for (const Rule& r : rules_)
    for (const Parameter& p : r.params) p.group().set_updates(p.index_in_group(), steps_);
}

void Optimizer::apply_gradient_factor() {
  const Tensor& factor = updates_->gradient_factor();
  // Rules that multiply by the factor in their own pass save this pass over the gradients. The others need
  // scaled gradients in memory.
  std::vector<ScaleSegment> pieces;
  for (const Rule& r : rules_) {
    if (r.heeds_gradient_factor) r.update->set_gradient_factor(factor);
    if (r.heeds_gradient_factor || !factor.defined()) continue;
    for (const Parameter& p : r.params)
      if (p.group().grad_final(p.index_in_group()) && !p.group().replicated())
        pieces.push_back({p.grad_shard().data<float>(), p.grad_shard().numel()});
  }
  if (!pieces.empty()) ops::scale_by(runtime_.device().compute(), pieces, factor);
}

// Returns clip_grad_norm()'s decision if it was called in this step; otherwise sums the squares of all
// gradients, with one all-reduce.
Tensor Optimizer::skip_of_gradients() {
  if (updates_->skip().defined()) return updates_->skip();
  Device& device = runtime_.device();
  const GradientSums all = sums_at_once(runtime_, updates_.get());
  const Tensor skip = Tensor::empty(device, {1}, DType::i64, MemoryClass::scratch, "gradient norm");
  const Tensor factor = Tensor::empty(device, {1}, DType::f32, MemoryClass::scratch, "gradient norm");
  const Tensor total =
      Tensor::empty(device, {ExactSum::kWords}, DType::i64, MemoryClass::scratch, "gradient norm");
  // A max_norm of 0 only measures: this call is for `skip` alone.
  ops::clip_factor(device.compute(), factor, total, all.sums, 0, skip);
  compare_served(runtime_, all.served);
  return skip;
}

// Blocks the host until the compute stream has reached this point.
int64_t Optimizer::skipped() const {
  int64_t count = 0;
  ops::copy_to_host(skipped_.device().compute(), &count, skipped_);
  return count;
}

// fill() takes a double: exact for counts below 2^53.
void Optimizer::set_skipped(int64_t skipped) {
  ops::fill(skipped_.device().compute(), skipped_, static_cast<double>(skipped));
}

// The copy is queued; the caller reads it after an event or a synchronize().
Tensor Optimizer::copy_skipped() const {
  Tensor host = Tensor::host(skipped_.device(), {1}, DType::i64, MemoryClass::scratch, "metrics");
  ops::copy(skipped_.device().compute(), host, skipped_);
  return host;
}

std::vector<StateTensor> Optimizer::state() const {
  std::vector<StateTensor> all;
  for (const Rule& r : rules_)
    for (StateTensor& s : r.update->state()) all.push_back(std::move(s));
  for (const auto& more : after_)
    for (StateTensor& s : more->state()) all.push_back(std::move(s));
  if (average_)
    for (StateTensor& s : average_->state()) all.push_back(std::move(s));
  return all;
}

std::vector<OwnedState> Optimizer::owned_state() const {
  std::vector<OwnedState> all;
  for (const Rule& r : rules_)
    for (OwnedState& s : r.update->owned_state()) all.push_back(std::move(s));
  return all;
}

std::vector<StateCounter> Optimizer::counters() const {
  std::vector<StateCounter> all;
  for (const Rule& r : rules_)
    for (StateCounter& c : r.update->counters()) all.push_back(std::move(c));
  return all;
}

}  // namespace sherd
