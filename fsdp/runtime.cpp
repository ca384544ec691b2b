#include <sherd/fsdp/runtime.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <unordered_map>

#include <sherd/comm/core/require_equal.h>
#include <sherd/fsdp/detail/alike.h>
#include <sherd/fsdp/detail/mesh_rules.h>
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
    : device_(root.wrap_->mesh.world()->device()), mesh_(root.wrap_->mesh), options_(root.wrap_->options) {
  assign_names(root);
  gather_ = device_.make_stream("gather", StreamPriority::high);
  reduce_ = device_.make_stream("reduce", StreamPriority::high);
  check_ = device_.make_stream("check");
  check_comm_ = mesh_.world()->clone();
  check_comm_->serve(Purpose("the comparison of what ranks do"));
  check_buffer_ = Tensor::empty(device_, {2 * check_comm_->size()}, DType::i64, "fingerprint");
  follow_compute(*check_);
  alone_ = mesh_.flatten({});

  // Children before parents, so that inner wraps claim first.
  std::vector<std::pair<std::string, Module*>> wrapped;
  root.visit([&](const std::string& name, Module& m) {
    if (m.wrap_ && &m != &root) wrapped.emplace_back(name, &m);
  });
  std::vector<std::shared_ptr<Unit>> by_position(wrapped.size());
  for (size_t i = wrapped.size(); i-- > 0;)
    by_position[i] = make_unit(*wrapped[i].second, wrapped[i].first, static_cast<int>(i), false);
  for (auto& u : by_position)
    if (u) {
      u->index_ = static_cast<int>(units_.size());
      u->ring_ = static_cast<int>(
          std::count_if(units_.begin(), units_.end(), [&](auto& v) { return v->height_ == u->height_; }));
      units_.push_back(u);
    }
  units_.push_back(make_unit(root, "root", static_cast<int>(wrapped.size()), true));
  check_meshes(mesh_, groups());
  check_fingerprints();
  assign_slots();
  allocate();
  initialise();
  device_.issue_in_order(true);  // until the first step is over
}

ShardRuntime::~ShardRuntime() {
  // The streams finish what is queued before they go. When this rank gives up, peers may never join in.
  if (std::uncaught_exceptions() > exceptions_before_)
    mesh_.world()->abort("an error ended its training; its own message tells which");
  // Modules below the root may live on and hold their units, whose buffers the streams still use.
  gather_.reset();
  reduce_.reset();
  buffers_.reset();
  for (auto& u : units_) u->detach();
}

std::shared_ptr<Unit> ShardRuntime::make_unit(Module& module, const std::string& name, int position,
                                              bool root) {
  const Wrap& wrap = *module.wrap_;
  auto unit = std::make_shared<Unit>(*this, name, -1, root);
  unit->reshard_after_forward_ = wrap.options.reshard_after_forward;
  module.visit([&](const std::string&, Module& m) {
    if (&m != &module && m.unit_) unit->height_ = std::max(unit->height_, m.unit_->height_ + 1);
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
      unit->groups_.push_back(
          make_group({name, std::move(some), wrap.mesh, comms, std::move(options), replicated, position}));
    }
  }
  module.unit_ = unit;
  return unit;
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

void ShardRuntime::assign_slots() {
  auto place = [&](std::vector<Slot>& slots, int64_t Unit::*elements, int Unit::*at, auto needs, auto shares,
                   int turns, DType dtype, const char* name) {
    struct Shared {
      int64_t size = 0;
      int slot = -1;
    };
    std::map<std::pair<int, int>, Shared> all;  // by height and turn
    const auto shared_of = [&](const Unit& u) -> Shared* {
      return shares(u) ? &all[{u.height_, u.ring_ % turns}] : nullptr;
    };
    for (auto& u : units_) {
      int64_t n = 0;
      for (auto& g : u->groups_) n += needs(*g) ? g->full_elements() : 0;
      (*u).*elements = n;
      if (Shared* known = n > 0 ? shared_of(*u) : nullptr) known->size = std::max(known->size, n);
    }
    for (auto& u : units_) {
      const int64_t n = (*u).*elements;
      if (n == 0) continue;
      Shared* known = shared_of(*u);
      if (known && known->slot >= 0) {
        (*u).*at = known->slot;
        continue;
      }
      const int64_t size = known ? known->size : n;
      (*u).*at = static_cast<int>(slots.size());
      if (known) known->slot = (*u).*at;
      slots.push_back({size, dtype, {}, name, nullptr, {}});
    }
  };
  const int turns = std::min(options_.prefetch, static_cast<int>(units_.size())) + 1;
  place(
      slots_, &Unit::slot_elements_, &Unit::slot_, [](const ParamGroup& g) { return g.needs_slot(); },
      [](const Unit& u) { return !u.root_ && u.reshard_after_forward_; }, turns,
      options_.compute_dtype, "unsharded parameters");
  place(
      grad_slots_, &Unit::grad_slot_elements_, &Unit::grad_slot_,
      [](const ParamGroup& g) { return g.needs_grad_slot(); }, [](const Unit& u) { return !u.root_; },
      options_.overlap_reduce ? 2 : 1, DType::f32, "unsharded gradients");
}

void ShardRuntime::allocate() {
  std::vector<ParamGroup::Buffer> all;
  for (auto* slots : {&slots_, &grad_slots_})
    for (Slot& s : *slots) all.push_back({&s.buffer, {s.elements, s.dtype, s.name}});
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
  stage(staging_.gather, gather, options_.compute_dtype);
  stage(staging_.reduce, reduce, DType::f32);
  stage(staging_.reduce_half, reduce_half, options_.reduce_dtype);
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
  for (auto* t : {&staging_.gather, &staging_.reduce, &staging_.reduce_half})
    if (t->defined()) ops::fill(device_.compute(), *t, 0);  // padding is moved and summed along
  weights_changed();
}

void ShardRuntime::require_gradients(const char* who) const {
  require_whole_step(who);
  if (*ranks_apart_)
    throw CommError(fmt::format(
        "{}: {}: in an earlier step the ranks used different units, the same ones in a different order, or "
        "different learning rates, so the weights are not what any of them computed; let every rank make the same "
        "calls in the same order (nccl.check_calls names the first that differs), and load a "
        "checkpoint",
        device_.label(), who));
  if (units_.back()->finished_) return;
  throw InvalidArgument(
      fmt::format("{}: {} needs final gradients, but no last microbatch's backward has run since the "
                  "previous optimizer step",
                  device_.label(), who));
}

void ShardRuntime::require_whole_step(const std::string& who) const {
  if (broken_.empty()) return;
  throw InvalidArgument(fmt::format(
      "{}: {}: the {} ended with an exception, and the step with it; skip the batch by reset_step() "
      "with the root module, on all ranks",
      device_.label(), who, broken_));
}

void ShardRuntime::note_cancelled(const Unit& unit, const Unit::Use& use) {
  if (cancelled_.empty())
    cancelled_ = fmt::format("{} of unit '{}'", use.backward ? "backward" : "forward", unit.name());
  // A forward may be caught and replaced by the module around it; a backward has left part of its gradients.
  const bool lost = use.backward || (use.training && open_ == 0);
  if (lost && broken_.empty()) broken_ = cancelled_;
  if (open_ == 0) cancelled_.clear();
}

void ShardRuntime::reset_step() {
  if (open_ > 0)
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
  for (auto& u : units_) {
    u->reshard();
    u->finished_ = false;
    u->due_ = 0;
    for (auto& g : u->groups_) g->reset_grads();
  }
  recording_.clear();
  ended_.clear();
  backward_at_ = 0;
  follows_order_ = false;
  use_digest_ = 0;
  broken_.clear();
}

void ShardRuntime::wait_gradients() { device_.compute().wait(reduced_); }

void ShardRuntime::begin_weights_change() {
  device_.compute().wait(gather_->record());
  device_.compute().wait(std::exchange(held_, {}));
  for (auto* g : groups()) g->forget_copies();
  changing_ = true;
  device_.compute().submit("update begins", [updates = updates_](ExecutionContext& context) {
    context.after([updates] { ++updates->begun; });
  });
}

void ShardRuntime::weights_changed() {
  if (std::exchange(changing_, false))
    device_.compute().submit("update ends", [updates = updates_](ExecutionContext& context) {
      context.after([updates] { updates->ended = updates->begun.load(); });
    });
  weights_ready_ = device_.compute().record();
  if (units_.back()->finished_) device_.issue_in_order(false);
  drop_step();
  ++steps_;
  for (auto& u : units_) {
    u->stale_ = true;
    u->unsharded_ = false;
    for (auto& g : u->groups_) g->reshard();
  }
}

void ShardRuntime::recovered() {
  if (open_ > 0)
    throw InvalidArgument(fmt::format(
        "{}: recovered() inside the forward or backward of a unit; let the exception leave the model first",
        device_.label()));
  changing_ = false;
  alike_ = 0;
  held_ = reduced_ = {};
  for (auto* slots : {&slots_, &grad_slots_})
    for (Slot& s : *slots) s.free = {}, s.occupant = nullptr;
  for (auto& u : units_) {
    u->ready_ = {};
    for (auto& g : u->groups_) {
      g->close_grad();
      g->forget_copies();
    }
  }
  order_.clear();  // not every rank may have ended the forward that recorded it
  weights_changed();
  steps_ = 0;  // the ranks may have come to different points of the host's order
  check_updates();
}

void ShardRuntime::weights_replaced() {
  mesh_.world()->reset_digest();
  alike_ = 0;
  *ranks_apart_ = false;
}

void ShardRuntime::check_updates() {
  const uint64_t mine[2] = {static_cast<uint64_t>(updates_->begun), static_cast<uint64_t>(updates_->ended)};
  const auto all = gather_values(*check_comm_, *check_, mine, check_buffer_);
  std::vector<int> cut_off;
  std::vector<uint64_t> ended;
  for (size_t r = 0; 2 * r < all.size(); ++r) {
    if (all[2 * r] != all[2 * r + 1]) cut_off.push_back(static_cast<int>(r));
    ended.push_back(all[2 * r + 1]);
  }
  const bool apart = std::adjacent_find(ended.begin(), ended.end(), std::not_equal_to<>()) != ended.end();
  if (cut_off.empty() && !apart) return;
  // Once a checkpoint is loaded the ranks are alike again.
  updates_->begun = updates_->ended = static_cast<int64_t>(*std::max_element(ended.begin(), ended.end()));
  throw Error(fmt::format(
      "{}: the failure cut an update of the weights off (ranks in the middle of it: {}; updates that ended, by "
      "rank: {}), so the ranks hold weights of different steps; load a checkpoint before training goes on",
      device_.label(), cut_off.empty() ? "none" : fmt::format("{}", fmt::join(cut_off, ", ")),
      fmt::join(ended, ", ")));
}

void ShardRuntime::record(const char* what, const Unit& unit) {
  use_digest_ = hash64(use_digest_, what) ^ hash64(use_digest_, unit.name());
  if (tracing_) trace_.push_back(fmt::format("{} {}", what, unit.name()));
}

Tensor ShardRuntime::take_slot(std::vector<Slot>& slots, int& at, int64_t elements, Unit& unit,
                               Stream& stream) {
  auto* slot = &slots[static_cast<size_t>(at)];
  if (slot->occupant != nullptr && slot->occupant != &unit) {
    if (slot->occupant->uses_.empty()) {
      slot->occupant->reshard();
    } else {
      // Memory that comes from the allocator may still be read by queued compute work.
      const DType dtype = slot->dtype;
      slots.push_back({elements, dtype, Tensor::empty(device_, {elements}, dtype, slot->name), slot->name,
                       nullptr, device_.compute().record()});
      at = static_cast<int>(slots.size()) - 1;
      slot = &slots.back();
    }
  }
  slot->occupant = &unit;
  stream.wait(slot->free);
  return slot->buffer;
}

void ShardRuntime::prefetch(Unit& unit) {
  if (unit.unsharded()) return;
  if (unit.slot_ >= 0 && slots_[static_cast<size_t>(unit.slot_)].occupant != nullptr) return;
  unit.unshard();
}

void ShardRuntime::prefetch_forward(Unit& unit) {
  if (unit.root()) {
    recording_.clear();
    ended_.clear();
    follows_order_ = true;
  } else {
    if (units_.back()->uses_.empty()) return;  // called by itself: no part of the root's order
    recording_.push_back(&unit);
    const size_t at = recording_.size() - 1;
    follows_order_ = follows_order_ && at < order_.size() && order_[at] == &unit;
  }
  if (!follows_order_) return;
  const size_t next = recording_.size();
  const size_t end = std::min(order_.size(), next + static_cast<size_t>(options_.prefetch));
  for (size_t i = next; i < end; ++i) prefetch(*order_[i]);
}

void ShardRuntime::end_forward(Unit& unit) {
  if (unit.root()) {
    order_ = std::exchange(recording_, {});
  } else if (!units_.back()->uses_.empty()) {
    ended_.push_back(&unit);
  }
}

void ShardRuntime::prefetch_backward(Unit& unit) {
  if (unit.root()) {
    backward_at_ = ended_.size();
  } else {
    size_t at = backward_at_;
    while (at > 0 && ended_[at - 1] != &unit) --at;
    if (at == 0) return;  // not in the recorded forward: nothing to predict
    backward_at_ = at - 1;
  }
  for (int k = 1; k <= options_.prefetch && backward_at_ >= static_cast<size_t>(k); ++k)
    prefetch(*ended_[backward_at_ - static_cast<size_t>(k)]);
}

void ShardRuntime::finish_backward() {
  if (!last_microbatch_) return;
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
    require_equal(use_digest_,
                  "the ranks used different units in this step; what is unused must be so on every rank");
  // Units that no backward of this microbatch reached still owe their collectives.
  for (auto& u : units_) {
    if (u->root() || u->finished_) continue;
    u->due_ = 1;
    BackwardScope scope(*u);
    scope.end();
  }
}

}  // namespace sherd
