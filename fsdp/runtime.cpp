#include <sherd/fsdp/runtime.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <unordered_map>

#include <sherd/comm/core/require_equal.h>
#include <sherd/fsdp/detail/alike.h>
#include <sherd/fsdp/detail/mesh_rules.h>
#include <sherd/fsdp/detail/unit_context.h>
#include <sherd/fsdp/detail/update_count.h>
#include <sherd/kernels/ops/ops.h>
#include <sherd/kernels/ops/random.h>

namespace sherd {
namespace {

// Parameters of `module`'s tree that nobody claimed, without those that are registered outside of it as well.
std::vector<Parameter> unclaimed(Module& module, bool root,
                                 const std::function<int(const Parameter&)>& registrations) {
  std::unordered_map<std::string, int> inside;
  std::vector<Parameter> found;
  module.visit([&](const std::string&, Module& m) {
    for (auto& p : m.own_parameters()) {
      if (p.sharded()) continue;
      if (inside[p.name()]++ == 0) found.push_back(p);
    }
  });
  if (!root) std::erase_if(found, [&](const Parameter& p) { return inside[p.name()] < registrations(p); });
  return found;
}

}  // namespace

ShardRuntime::ShardRuntime(Module& root)
    : device_(root.wrap_->mesh.world()->device()),
      mesh_(root.wrap_->mesh),
      options_(root.wrap_->options),
      updates_(std::make_unique<UpdateCount>()) {
  assign_names(root);
  // Children before parents, so that inner wraps claim first.
  std::vector<std::pair<std::string, Module*>> wrapped;
  std::vector<std::string> names;
  root.visit([&](const std::string& name, Module& m) {
    if (!m.wrap_ || &m == &root) return;
    wrapped.emplace_back(name, &m);
    names.push_back(name);
  });
  names.emplace_back("root");
  context_ =
      std::make_unique<UnitContext>(device_, std::move(names), options_.prefetch, options_.overlap_reduce);
  context_->complete_backward = [this] { complete_backward(); };
  check_ = device_.make_stream("check");
  check_comm_ = mesh_.world()->clone();
  check_comm_->serve(Purpose("the comparison of what ranks do"));
  check_buffer_ = Tensor::empty(device_, {2 * check_comm_->size()}, DType::i64, "fingerprint");
  follow_compute(*check_);
  alone_ = mesh_.flatten({});

  units_.resize(wrapped.size());
  for (size_t i = wrapped.size(); i-- > 0;)
    units_[i] = make_unit(*wrapped[i].second, wrapped[i].first, static_cast<int>(i), false);
  units_.push_back(make_unit(root, "root", static_cast<int>(wrapped.size()), true));
  for (auto& u : units_) context_->units.push_back(u.get());
  check_meshes(mesh_, groups());
  check_fingerprints();
  make_slots();
  allocate();
  initialise();
  device_.issue_in_order(true);  // until the first step is over
}

ShardRuntime::~ShardRuntime() {
  // The streams finish what is queued before they go. When this rank gives up, peers may never join in.
  if (std::uncaught_exceptions() > exceptions_before_)
    mesh_.world()->abort("an error ended its training; its own message tells which");
  // Modules below the root may live on and hold their units, whose buffers the streams still use.
  context_->gather.reset();
  context_->reduce.reset();
  buffers_.reset();
  for (auto& u : units_) u->detach();
}

std::shared_ptr<Unit> ShardRuntime::make_unit(Module& module, const std::string& name, int position,
                                              bool root) {
  const Wrap& wrap = *module.wrap_;
  Unit::Spec unit{.name = name,
                  .number = position,
                  .root = root,
                  .reshard_after_forward = wrap.options.reshard_after_forward};
  module.visit([&](const std::string&, Module& m) {
    if (&m != &module && m.unit_) unit.height = std::max(unit.height, m.unit_->height() + 1);
  });
  const auto params = unclaimed(module, root, [](const Parameter& p) { return p.state_->registrations; });
  const auto& ignored = options_.ignored;
  auto is_ignored = [&](const Parameter& p) {
    return std::find(ignored.begin(), ignored.end(), p.name()) != ignored.end();
  };
  enum Kind { whole, cut, frozen };
  auto kind_of = [&](const Parameter& p) {
    if (!p.trainable()) return frozen;
    return wrap.options.layout == LayoutPolicy::whole_param && p.cut() == CutClass::row ? whole : cut;
  };
  for (const bool replicated : {false, true}) {
    for (const Kind kind : {whole, cut, frozen}) {
      std::vector<Parameter> some;
      for (auto& p : params)
        if (kind_of(p) == kind && is_ignored(p) == replicated) some.push_back(p);
      if (some.empty()) continue;
      const GroupComms comms = replicated ? GroupComms{alone_, alone_, alone_, alone_} : comms_of(wrap);
      FullyShardOptions options = wrap.options;
      if (options.layout == LayoutPolicy::whole_param && kind != whole) options.layout = LayoutPolicy::ragged;
      unit.groups.push_back(
          make_group({name, std::move(some), wrap.mesh, comms, std::move(options), replicated, position}));
    }
  }
  module.unit_ = std::make_shared<Unit>(*context_, std::move(unit));
  return module.unit_;
}

std::unique_ptr<ParamGroup> ShardRuntime::make_group(ParamGroup::Spec spec) {
  const FullyShardOptions& o = spec.options;
  if (o.layout != LayoutPolicy::whole_param || spec.replicated)
    return std::make_unique<ParamGroup>(device_, std::move(spec));
  auto& cost =
      packed_cost_[{spec.mesh.comm(o.shard_dim).get(), ParamGroup::layout_world(spec.mesh, spec.options)}];
  spec.carried_cost = cost;
  auto group = std::make_unique<ParamGroup>(device_, std::move(spec));
  cost = group->layout().rank_cost();
  return group;
}

const GroupComms& ShardRuntime::comms_of(const Wrap& wrap) {
  const auto& inner = wrap.mesh.comm(wrap.options.shard_dim);
  const bool hsdp = wrap.mesh.has(wrap.options.replicate_dim);
  const auto outer = hsdp ? wrap.mesh.comm(wrap.options.replicate_dim) : nullptr;
  auto [it, fresh] = comms_.try_emplace({inner.get(), outer.get()});
  if (fresh) {
    it->second.gather_inner = inner->clone();
    it->second.reduce_inner = inner->clone();
    it->second.gather_outer = outer ? outer->clone() : alone_;
    it->second.reduce_outer = outer ? outer->clone() : alone_;
  }
  return it->second;
}

std::vector<ParamGroup*> ShardRuntime::groups() const {
  std::vector<ParamGroup*> all;
  for (auto& u : units_)
    for (auto& g : u->groups()) all.push_back(g.get());
  return all;
}

void ShardRuntime::check_fingerprints() {
  check_alike(*check_comm_, *check_, groups(),
              fmt::format("{}: the ranks of mesh '{}' wrapped different models or passed different options; "
                          "build the same model with the same options on every rank",
                          device_.label(), mesh_.describe()));
}

void ShardRuntime::require_equal(uint64_t value, const std::string& otherwise) {
  sherd::require_equal(*check_comm_, *check_, value, fmt::format("{}: {}", device_.label(), otherwise),
                       check_buffer_);
}

void ShardRuntime::make_slots() {
  std::vector<SlotNeed> whole, gradients;
  for (auto& u : units_) {
    whole.push_back(u->parameter_need());
    gradients.push_back(u->gradient_need());
  }
  // One unit computes while `prefetch` more are gathered; one unit's backward writes while another's
  // gradients are reduced, if that is to overlap.
  const int ahead = std::min(options_.prefetch, static_cast<int>(units_.size()));
  context_->whole = SlotPool(device_, options_.compute_dtype, "unsharded parameters", whole, ahead + 1);
  context_->gradients =
      SlotPool(device_, DType::f32, "unsharded gradients", gradients, options_.overlap_reduce ? 2 : 1);
  // What was gathered and is not in use can be gathered again. Gradients that are there are always in use.
  context_->whole.set_give_back([this](int holder) {
    if (context_->order.open(holder) > 0) return false;
    units_[static_cast<size_t>(holder)]->reshard();
    return true;
  });
}

void ShardRuntime::allocate() {
  std::vector<ParamGroup::Buffer> all;
  for (SlotPool* pool : {&context_->whole, &context_->gradients})
    for (SlotPool::Buffer& b : pool->buffers()) all.push_back({b.memory, std::move(b.spec)});
  int64_t gather = 0, reduce = 0, reduce_half = 0;
  for (auto* g : groups()) {
    if (g->stages_gather()) gather = std::max(gather, g->staging_elements());
    if (g->stages_reduce()) {
      int64_t& size = g->wire_dtype() == DType::f32 ? reduce : reduce_half;
      size = std::max(size, g->staging_elements());
    }
    for (auto& b : g->buffers()) all.push_back(std::move(b));
  }
  const auto stage = [&](Tensor& t, int64_t elements, DType dtype) {
    if (elements > 0) all.push_back({&t, {elements, dtype, "staging"}});
  };
  Staging& staging = context_->staging;
  stage(staging.gather, gather, options_.compute_dtype);
  stage(staging.reduce, reduce, DType::f32);
  stage(staging.reduce_half, reduce_half, options_.reduce_dtype);
  std::vector<BufferSpec> specs;
  for (auto& b : all) specs.push_back(b.spec);
  buffers_ = mesh_.world()->make_buffers(specs);
  for (size_t i = 0; i < all.size(); ++i) *all[i].memory = buffers_->tensors()[i];
  // Units come in one order on all ranks, and their communicators with them.
  for (auto* g : groups())
    for (auto& comm : {g->comms().gather_inner, g->comms().gather_outer, g->comms().reduce_inner,
                       g->comms().reduce_outer})
      buffers_->share(*comm);
}

void ShardRuntime::initialise() {
  for (auto* g : groups()) {
    g->allocate();
    g->initialise(device_.compute(), options_.seed);
  }
  Staging& staging = context_->staging;
  for (auto* t : {&staging.gather, &staging.reduce, &staging.reduce_half})
    if (t->defined()) ops::fill(device_.compute(), *t, 0);  // padding is moved and summed along
  begin_step();
}

void ShardRuntime::require_gradients(const char* who) const {
  context_->require_whole_step(who);
  if (*ranks_apart_)
    throw CommError(fmt::format(
        "{}: {}: in an earlier step the ranks used different units, the same ones in a different order, or "
        "different learning rates, so the weights are not what any of them computed; let every rank make the same "
        "calls in the same order (LaunchOptions::nccl_check_calls names the first that differs), and load a "
        "checkpoint",
        device_.label(), who));
  if (units_.back()->finished()) return;
  throw InvalidArgument(
      fmt::format("{}: {} needs final gradients, but no last microbatch's backward has run since the "
                  "previous optimizer step",
                  device_.label(), who));
}

void ShardRuntime::reset_step() {
  if (context_->order.open() > 0)
    throw InvalidArgument(fmt::format(
        "{}: reset_step() inside the forward or backward of a unit; let the exception leave the model "
        "first",
        device_.label()));
  require_equal(++steps_,
                "reset_step() on ranks that have made different numbers of steps; all ranks skip the "
                "same batch");
  wait_gradients();  // reductions that are queued still write what the next step fills
  drop_step();
}

void ShardRuntime::drop_step() {
  skip_ = Tensor();
  for (auto& u : units_) u->drop_step();
  context_->order.reset();
  context_->log.begin_step();
}

void ShardRuntime::wait_gradients() { device_.compute().wait(context_->reduced); }

void ShardRuntime::begin_change(WeightsChange& change) {
  if (changing_ != nullptr)
    throw InvalidArgument(fmt::format(
        "{}: WeightsChange: another change of these weights is open; end() it first", device_.label()));
  Stream& compute = device_.compute();
  // An update reads the gradients, which the reduce stream may still be summing.
  compute.wait(context_->reduced);
  // Gathers that are queued (those ahead of a forward that never came, say) read what the change writes.
  compute.wait(context_->gather->record());
  compute.wait(std::exchange(held_, {}));
  for (auto* g : groups()) g->forget_copies();
  updates_->begin(compute);
  changing_ = &change;
}

void ShardRuntime::end_change(WeightsChange& change, bool whole) {
  if (changing_ != &change) return;
  changing_ = nullptr;
  if (whole) {
    updates_->end(device_.compute());
  } else {
    for (auto* g : groups()) g->forget_copies();  // not all may be written
  }
  begin_step();
}

void ShardRuntime::begin_step() {
  // Gathers of the new weights wait for this: they read what the compute stream has been asked to write.
  context_->weights_ready = device_.compute().record();
  if (units_.back()->finished()) device_.issue_in_order(false);
  drop_step();
  ++steps_;
  for (auto& u : units_) u->weights_changed();
}

void ShardRuntime::recovered() {
  if (context_->order.open() > 0)
    throw InvalidArgument(fmt::format(
        "{}: recovered() inside the forward or backward of a unit; let the exception leave the model first",
        device_.label()));
  changing_ = nullptr;
  alike_ = 0;
  held_ = context_->reduced = {};
  for (auto& u : units_) u->recovered();
  context_->whole.forget_events();
  context_->gradients.forget_events();
  context_->order.forget();  // not every rank may have ended the forward that recorded it
  begin_step();
  steps_ = 0;  // the ranks may have come to different points of the host's order
  updates_->require_equal(*check_comm_, *check_, check_buffer_, device_.label());
}

void ShardRuntime::weights_replaced() {
  mesh_.world()->reset_digest();
  alike_ = 0;
  *ranks_apart_ = false;
}

void ShardRuntime::set_last_microbatch(bool last) { context_->last_microbatch = last; }

bool ShardRuntime::last_microbatch() const { return context_->last_microbatch; }

const std::vector<std::string>& ShardRuntime::trace() const { return context_->log.lines(); }

void ShardRuntime::clear_trace() { context_->log.clear_lines(); }

void ShardRuntime::enable_trace(bool on) { context_->log.keep_lines(on); }

void ShardRuntime::complete_backward() {
  if (!context_->last_microbatch) return;
  skip_ = Tensor();  // of other gradients
  std::vector<std::string> missing;
  for (auto* g : groups()) {
    const auto names = g->untouched();
    missing.insert(missing.end(), names.begin(), names.end());
  }
  if (!missing.empty() && !options_.allow_unused)
    throw InvalidArgument(
        fmt::format("{}: no backward of this step touched the gradient of {} parameter(s): {}; run their "
                    "backward, freeze() them, or set FullyShardOptions::allow_unused",
                    device_.label(), missing.size(), fmt::join(missing, ", ")));
  // Usage that differs from rank to rank would pair one unit's collectives with another's.
  if (options_.allow_unused)
    require_equal(context_->log.digest(),
                  "the ranks used different units in this step; what is unused must be so on every rank");
  // Units that no backward of this microbatch reached still owe their collectives.
  for (auto& u : units_) {
    if (u->root() || u->finished()) continue;
    context_->order.owe_backward(u->index());
    BackwardScope scope(*u);
    scope.end();
  }
}

}  // namespace sherd
