// Construction of a sharded model's runtime.
#include <fmt/format.h>

#include <set>

#include <algorithm>
#include <map>
#include <utility>

#include <sherd/fsdp/detail/bucket.h>
#include <sherd/fsdp/detail/mesh_rules.h>
#include <sherd/fsdp/detail/rank_comparison.h>
#include <sherd/fsdp/detail/unit_claims.h>
#include <sherd/fsdp/detail/unit_context.h>
#include <sherd/fsdp/runtime.h>
#include <sherd/fsdp/shard_axes.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

// Returns lines that describe all that communicators and layouts are made of: the root's options, units with
// their parameters, and buffers.
std::vector<std::string> in_words(const std::vector<UnitClaim>& claims, const std::vector<Buffer>& buffers) {
  const RootOptions& o = claims.back().module->wrap()->root;
  std::vector<std::string> lines = {
      fmt::format("root options (prefetch {}, overlap_reduce {}, allow_unused {}, seed {})", o.prefetch,
                  o.overlap_reduce, o.allow_unused, o.seed)};
  for (const std::string& name : std::set<std::string>(o.ignored.begin(), o.ignored.end()))
    lines.push_back(fmt::format("ignored parameter '{}'", name));
  for (const UnitClaim& claim : claims) {
    const auto& [mesh, options, root] = *claim.module->wrap();
    lines.push_back(
        fmt::format("unit '{}' ({}, mesh {})", claim.name, name_of(options.strategy), mesh.describe()));
    for (const Parameter& p : claim.params) {
      const Master master = p.master().value_or(options.master);
      lines.push_back(fmt::format(
          "parameter '{}' of unit '{}' ({} {}{}{}{})", p.name(), claim.name, to_string(p.global_shape()),
          name_of(p.compute_dtype().value_or(options.compute_dtype)),
          master == Master::f32 ? "" : fmt::format(", master {}", name_of(master)),
          p.master_place().value_or(options.master_place) == Place::host ? ", masters on the host" : "",
          p.trainable() ? "" : ", frozen"));
    }
  }
  for (const Buffer& b : buffers)
    lines.push_back(fmt::format("buffer '{}' ({} {})", b.name(), to_string(b.shape()), name_of(b.dtype())));
  return lines;
}

// Returns the ranks over which a unit is sharded.
const Communicator* shard_ranks_of(const Wrap& wrap) {
  std::vector<MeshAxis> axes;
  for (const MeshDim& d : wrap.mesh.dims()) axes.push_back({d.name, d.size, wrap.mesh.coordinate(d.name)});
  return wrap.mesh.flatten(ShardAxes::of(std::move(axes), wrap.options).shard).get();
}

}  // namespace

/// Writes the runtime's members.
class ShardRuntime::Builder {
 public:
  explicit Builder(ShardRuntime& runtime) : r_(runtime) {}
  void build(ModuleBase& root);

 private:
  /// Makes the unit of a claim, with its groups built as planned. Collective: makes the communicators of its
  /// mesh.
  /// @param number its position in units()
  std::shared_ptr<Unit> make_unit(const UnitClaim& claim, const UnitPlan& plan, int number);
  /// Makes the buckets, as planned. Collective likewise.
  void make_buckets(const std::vector<UnitClaim>& claims);
  GroupComms comms_of(const DeviceMesh& mesh, const GroupPlan& plan);
  void make_slots();
  /// Allocates slots, staging and the buffers of groups.
  void allocate();
  void initialise();

  ShardRuntime& r_;
  // Keys: the communicators of the shard group and of the replicas (null: none).
  std::map<std::pair<const Communicator*, const Communicator*>, GroupComms> comms_;
  std::shared_ptr<Communicator> alone_;  // a group of one, for ignored parameters
};

void ShardRuntime::build(ModuleBase& root) { Builder(*this).build(root); }

void ShardRuntime::Builder::build(ModuleBase& root) {
  assign_names(root);
  const std::vector<UnitClaim> claims =
      claim_parameters(root, [](const Parameter& p) { return p.state_->registrations; });
  std::vector<std::string> names;
  for (auto& claim : claims) names.push_back(claim.name);
  r_.context_ = std::make_unique<UnitContext>(r_.device_, r_.mesh_.world()->size(), std::move(names),
                                              r_.root_options_.prefetch, r_.root_options_.overlap_reduce);
  const DeviceMesh& mesh = root.wrap_->mesh;
  const std::string& context_dim = root.wrap_->options.context_dim;
  const bool shares = mesh.has(context_dim) && root.wrap_->options.shares_sequences(context_dim);
  r_.context_->context_ranks = shares ? mesh.size(context_dim) : 1;
  r_.context_->complete_backward = [&r = r_] { return r.complete_backward(); };
  r_.comparison_ = std::make_unique<RankComparison>(r_.mesh_);
  for (auto& [name, b] : root.named_buffers()) r_.kept_.push_back(b);
  // Before any unit is made: ranks with different wraps would make different communicators and wait for each
  // other.
  r_.comparison_->require_same_wraps(in_words(claims, r_.kept_));
  alone_ = r_.mesh_.flatten({});

  // Copies of a mesh share their communicators, so units with one communicator of the shard group are on the same ranks.
  std::vector<const Communicator*> known;
  std::vector<PlanUnit> described;
  for (auto& claim : claims) {
    const Wrap& wrap = *claim.module->wrap_;
    const Communicator* ranks = shard_ranks_of(wrap);
    const auto id = std::find(known.begin(), known.end(), ranks) - known.begin();
    if (id == static_cast<std::ptrdiff_t>(known.size())) known.push_back(ranks);
    described.push_back(
        plan_unit_of(claim, static_cast<int>(described.size()), static_cast<int>(id), *root.wrap_));
  }
  // Arithmetic on equal claims: every rank makes the same plan without communication.
  r_.plan_ = plan_model(described, r_.root_options_);
  // Before the units, which hold pointers to their buckets.
  make_buckets(claims);
  // Backward order, the root last. Making a unit makes the communicators of its mesh, on all ranks in this
  // order.
  r_.units_.resize(claims.size());
  const int last = static_cast<int>(claims.size()) - 1;
  for (int i = last; i-- > 0;)
    r_.units_[static_cast<size_t>(i)] =
        make_unit(claims[static_cast<size_t>(i)], r_.plan_.units[static_cast<size_t>(i)], i);
  r_.units_.back() = make_unit(claims.back(), r_.plan_.units.back(), last);
  for (auto& u : r_.units_) r_.context_->units.push_back(u.get());
  check_meshes(*root.wrap_, r_.groups());
  // Before the allocations: ranks with other options would share buffers of other sizes.
  r_.comparison_->require_same_model(r_.groups(), r_.kept_);
  make_slots();
  allocate();
  initialise();
}

std::shared_ptr<Unit> ShardRuntime::Builder::make_unit(const UnitClaim& claim, const UnitPlan& plan,
                                                       int number) {
  const Wrap& wrap = *claim.module->wrap_;
  Unit::Spec unit{
      .name = claim.name,
      .number = number,
      .root = claim.root,
      .reshard_after_forward = wrap.options.reshard_after_forward,
      .height = claim.height,
      .precision = {wrap.options.cast_inputs ? std::optional(wrap.options.compute_dtype) : std::nullopt,
                    wrap.options.output_dtype}};
  for (const GroupPlan& g : plan.groups) {
    std::vector<Parameter> params;
    for (const int i : g.params) params.push_back(claim.params[static_cast<size_t>(i)]);
    unit.groups.push_back(std::make_unique<ParamGroup>(r_.device_, ParamGroup::Spec{g,
                                                                                    std::move(params),
                                                                                    wrap.mesh,
                                                                                    comms_of(wrap.mesh, g),
                                                                                    {wrap.options},
                                                                                    {},
                                                                                    &r_.context_->recorder}));
  }
  unit.params = claim.params;
  // A bucket knows its units; a unit also needs the buckets that hold its parameters.
  for (size_t k = 0; k < r_.buckets_.size(); ++k) {
    const std::vector<int>& units = r_.plan_.buckets[k].units;
    if (std::find(units.begin(), units.end(), number) != units.end())
      unit.buckets.push_back(r_.buckets_[k].get());
  }
  claim.module->unit_ = std::make_shared<Unit>(*r_.context_, std::move(unit));
  return claim.module->unit_;
}

void ShardRuntime::Builder::make_buckets(const std::vector<UnitClaim>& claims) {
  for (const BucketPlan& plan : r_.plan_.buckets) {
    std::vector<Parameter> params;
    std::vector<std::string> owners;
    for (size_t k = 0; k < plan.units.size(); ++k) {
      const UnitClaim& claim = claims[static_cast<size_t>(plan.units[k])];
      params.push_back(claim.params[static_cast<size_t>(plan.group.params[k])]);
      owners.push_back(claim.name);
    }
    std::vector<FullyShardOptions> options;
    for (const int u : plan.members())
      options.push_back(claims[static_cast<size_t>(u)].module->wrap_->options);
    // All units of a bucket are on the same ranks, so the first one's mesh stands for all.
    const DeviceMesh& mesh = claims[static_cast<size_t>(plan.units.front())].module->wrap_->mesh;
    auto group = std::make_unique<ParamGroup>(
        r_.device_, ParamGroup::Spec{plan.group, std::move(params), mesh, comms_of(mesh, plan.group),
                                     std::move(options), std::move(owners), &r_.context_->recorder});
    r_.buckets_.push_back(std::make_unique<Bucket>(
        *r_.context_, Bucket::Spec{static_cast<int>(r_.buckets_.size()), plan.members(), std::move(group)}));
    r_.context_->buckets.push_back(r_.buckets_.back().get());
  }
}

GroupComms ShardRuntime::Builder::comms_of(const DeviceMesh& mesh, const GroupPlan& plan) {
  // Returns the communicators of a group. Collective at the first request for these dimensions: clone()
  // blocks the host until all ranks call it.
  const ShardAxes& axes = plan.axes;
  if (axes.shard.empty()) return {alone_, alone_, alone_, alone_};  // ignored parameters
  const auto inner = mesh.flatten(axes.shard);
  const auto outer = axes.replicate.empty() ? nullptr : mesh.flatten(axes.replicate);
  // Groups with equal dimensions share communicators; gathers and reductions have separate ones.
  auto [it, fresh] = comms_.try_emplace({inner.get(), outer.get()});
  if (fresh) {
    it->second.gather_inner = inner->clone();
    it->second.reduce_inner = inner->clone();
    it->second.gather_outer = outer ? outer->clone() : alone_;
    it->second.reduce_outer = outer ? outer->clone() : alone_;
  }
  // Its pieces are exchanged, and summed here.
  if (plan.wire_dtype != DType::f32) it->second.reduce_inner->connect_pairs();
  return it->second;
}

void ShardRuntime::Builder::make_slots() {
  SlotPlan whole, gradients;
  std::vector<int64_t> whole_elements, gradient_elements;
  for (const PlannedBuffer& b : r_.plan_.gather_slots) whole.elements.push_back(b.elements);
  for (const PlannedBuffer& b : r_.plan_.gradient_slots) gradients.elements.push_back(b.elements);
  for (const UnitPlan& u : r_.plan_.units) {
    whole.slot_of.push_back(u.gather_slot);
    whole_elements.push_back(u.gather_bytes);
    gradients.slot_of.push_back(u.gradient_slot);
    gradient_elements.push_back(u.gradient_elements);
  }
  // Users of gradient slots are the units, then the buckets.
  for (const BucketPlan& b : r_.plan_.buckets) {
    const PlannedBuffer* open = b.group.find(BufferUse::open_gradient);
    gradients.slot_of.push_back(b.gradient_slot);
    gradient_elements.push_back(open != nullptr ? open->elements : 0);
  }
  // Bytes, because the groups of one unit may have several dtypes.
  r_.context_->whole = SlotPool(r_.device_, DType::u8, MemoryClass::gathered, "unsharded parameters",
                                std::move(whole), std::move(whole_elements));
  r_.context_->gradients = SlotPool(r_.device_, DType::f32, MemoryClass::gradient, "unsharded gradients",
                                    std::move(gradients), std::move(gradient_elements));
  // Unsharded parameters that are not in use can be gathered again. Open gradients are always in use.
  r_.context_->whole.set_give_back([&r = r_](int holder) {
    if (r.context_->order.open(holder) > 0) return false;
    r.units_[static_cast<size_t>(holder)]->reshard();
    return true;
  });
}

void ShardRuntime::Builder::allocate() {
  // One make_buffers() call for all buffers of collectives, so that a backend can use one block of memory.
  std::vector<ParamGroup::Buffer> all;
  for (SlotPool* pool : {&r_.context_->whole, &r_.context_->gradients})
    for (SlotPool::Buffer& b : pool->buffers()) all.push_back({b.memory, std::move(b.spec)});
  for (auto* g : r_.groups())
    for (auto& b : g->buffers()) all.push_back(std::move(b));
  Staging& staging = r_.context_->staging;
  for (const PlannedBuffer& b : r_.plan_.staging) {
    Staging::Pair& pair = b.use == BufferUse::gather_staging ? staging.gather : staging.reduce;
    all.push_back({&pair.of(b.dtype), spec_of(b)});
  }
  std::vector<BufferSpec> specs;
  for (auto& b : all) specs.push_back(b.spec);
  r_.buffers_ = r_.mesh_.world()->make_buffers(specs);
  for (size_t i = 0; i < all.size(); ++i) *all[i].memory = r_.buffers_->tensors()[i];
  const auto groups = r_.groups();
  if (std::ranges::any_of(groups, [](auto* g) { return g->plan().grad_dtype != DType::f32; })) {
    staging.zero = Tensor::empty(r_.device_, {1}, DType::f32, MemoryClass::optimizer, "gradient noise");
    ops::fill(r_.device_.compute(), staging.zero, 0);
  }
  // Units have one order on all ranks, and so do their communicators.
  for (auto* g : r_.groups())
    for (auto& comm :
         {g->comms().gather_inner, g->comms().gather_outer, g->comms().reduce_inner, g->comms().reduce_outer})
      r_.buffers_->share(*comm);
}

void ShardRuntime::Builder::initialise() {
  for (auto* g : r_.groups()) {
    g->allocate();
    g->initialise(r_.device_.compute(), r_.root_options_.seed);
  }
  for (Buffer& b : r_.kept_) b.allocate(r_.device_.compute(), r_.root_options_.seed);
  Staging& staging = r_.context_->staging;
  for (auto* t : {&staging.gather.full, &staging.gather.half, &staging.reduce.full, &staging.reduce.half})
    if (t->defined()) ops::fill(r_.device_.compute(), *t, 0);  // padding is sent and summed, too
}

}  // namespace sherd
