#include <sherd/fsdp/runtime.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <unordered_map>

#include <sherd/kernels/ops.h>
#include <sherd/kernels/random.h>

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
  check_buffer_ = Tensor::empty(device_, {2}, DType::i64, "fingerprint");
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
  check_tensor_shards();
  check_fingerprints();
  assign_slots();
  initialise();
  device_.issue_in_order(true);  // until the first step is over
}

ShardRuntime::~ShardRuntime() {
  // The streams finish what is queued before they go. When this rank gives up, peers may never join in.
  if (std::uncaught_exceptions() > exceptions_before_)
    mesh_.world()->abort("an error ended its training; its own message tells which");
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

void ShardRuntime::check_tensor_shards() const {
  std::vector<std::string> wrong;
  for (auto* g : groups()) {
    const DeviceMesh& mesh = g->mesh();
    for (auto& p : g->params()) {
      if (!p.tensor_shard() || p.tensor_shard()->parts == 1) continue;
      const TensorShard& t = *p.tensor_shard();
      const FullyShardOptions& o = g->options();
      if (mesh.has(t.mesh_dim) && (t.mesh_dim == o.shard_dim || t.mesh_dim == o.replicate_dim)) {
        wrong.push_back(
            fmt::format("'{}' is piece {} of {} over mesh dimension '{}', which is the {} dimension "
                        "of unit '{}' as well: gradients of different pieces would be summed",
                        p.name(), t.index, t.parts, t.mesh_dim,
                        t.mesh_dim == o.shard_dim ? "shard" : "replicate", g->unit()));
        continue;
      }
      if (mesh.has(t.mesh_dim) && mesh.size(t.mesh_dim) == t.parts && mesh.coordinate(t.mesh_dim) == t.index)
        continue;
      wrong.push_back(fmt::format(
          "'{}' is piece {} of {} over mesh dimension '{}', but {}", p.name(), t.index, t.parts, t.mesh_dim,
          !mesh.has(t.mesh_dim) ? fmt::format("its mesh '{}' has no such dimension", mesh.describe())
                                : fmt::format("this is rank {} of {} along it", mesh.coordinate(t.mesh_dim),
                                              mesh.size(t.mesh_dim))));
    }
  }
  if (!wrong.empty()) throw InvalidArgument(fmt::format("fully_shard: {}", fmt::join(wrong, "; ")));
}

void ShardRuntime::check_fingerprints() {
  uint64_t digest = 0;
  for (auto* g : groups()) digest = (digest ^ g->fingerprint()) * 0x9e3779b97f4a7c15ull;
  require_equal(
      digest,
      fmt::format("the ranks of mesh '{}' wrapped different models or passed different options; build "
                  "the same model with the same options on every rank",
                  mesh_.describe()));
}

void ShardRuntime::require_equal(uint64_t value, const std::string& otherwise) {
  // Equal everywhere exactly when the largest is the smallest; min(x) = -max(-x) without a second call.
  const int64_t both[2] = {static_cast<int64_t>(value >> 2), -static_cast<int64_t>(value >> 2)};
  ops::copy_from_host(*check_, check_buffer_, both, sizeof both);
  check_comm_->all_reduce(*check_, check_buffer_, ReduceOp::max);
  int64_t got[2];
  ops::copy_to_host(*check_, got, check_buffer_);
  if (got[0] != -got[1])
    throw ShapeMismatch(fmt::format("{}: {} (fingerprint {:016x} here)", device_.label(), otherwise, value));
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
      slots.push_back({Tensor::empty(device_, {size}, dtype, name), nullptr, {}});
    }
  };
  place(
      slots_, &Unit::slot_elements_, &Unit::slot_, [](const ParamGroup& g) { return g.needs_slot(); },
      [](const Unit& u) { return !u.root_ && u.reshard_after_forward_; }, options_.prefetch + 1,
      options_.compute_dtype, "unsharded parameters");
  place(
      grad_slots_, &Unit::grad_slot_elements_, &Unit::grad_slot_,
      [](const ParamGroup& g) { return g.needs_grad_slot(); }, [](const Unit& u) { return !u.root_; },
      options_.overlap_reduce ? 2 : 1, DType::f32, "unsharded gradients");
}

void ShardRuntime::initialise() {
  int64_t gather = 0, reduce = 0, reduce_half = 0;
  for (auto* g : groups()) {
    if (g->stages_gather()) gather = std::max(gather, g->staging_elements());
    if (g->stages_reduce()) {
      int64_t& size = g->wire_dtype() == DType::f32 ? reduce : reduce_half;
      size = std::max(size, g->staging_elements());
    }
    g->allocate();
    g->initialise(device_.compute(), options_.seed);
  }
  auto stage = [&](Tensor& t, int64_t elements, DType dtype) {
    if (elements == 0) return;
    t = Tensor::empty(device_, {elements}, dtype, "staging");
    ops::fill(device_.compute(), t, 0);  // padding is moved and summed along
  };
  stage(staging_.gather, gather, options_.compute_dtype);
  stage(staging_.reduce, reduce, DType::f32);
  stage(staging_.reduce_half, reduce_half, options_.reduce_dtype);
  weights_changed();
}

void ShardRuntime::require_gradients(const char* who) const {
  if (units_.back()->finished_) return;
  throw InvalidArgument(
      fmt::format("{}: {} needs final gradients, but no last microbatch's backward has run since the "
                  "previous optimizer step",
                  device_.label(), who));
}

void ShardRuntime::wait_gradients() { device_.compute().wait(reduced_); }

void ShardRuntime::begin_weights_change() {
  device_.compute().wait(gather_->record());
  device_.compute().wait(std::exchange(held_, {}));
  for (auto* g : groups()) g->forget_copies();
}

void ShardRuntime::weights_changed() {
  weights_ready_ = device_.compute().record();
  if (units_.back()->finished_) device_.issue_in_order(false);
  for (auto& u : units_) {
    u->reshard();
    u->stale_ = true;
    u->unsharded_ = u->finished_ = false;
    u->due_ = 0;
    for (auto& g : u->groups_) {
      g->reshard();
      g->reset_grads();
    }
  }
  use_digest_ = 0;
}

void ShardRuntime::record(const char* what, const Unit& unit) {
  use_digest_ = hash64(use_digest_, what) ^ hash64(use_digest_, unit.name());
  if (tracing_) trace_.push_back(fmt::format("{} {}", what, unit.name()));
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
    recording_.push_back(&unit);
    const size_t at = recording_.size() - 1;
    follows_order_ = follows_order_ && at < order_.size() && order_[at] == &unit;
  }
  if (!follows_order_) return;
  const size_t next = recording_.size();
  const size_t end = std::min(order_.size(), next + static_cast<size_t>(options_.prefetch));
  for (size_t i = next; i < end; ++i) prefetch(*order_[i]);
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
    u->pre_backward();
    u->post_backward();
  }
}

}  // namespace sherd
