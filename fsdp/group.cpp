#include <sherd/fsdp/group.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include <sherd/fsdp/detail/initial_values.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/random/random.h>

namespace sherd {
namespace {

/// Combines digests in order; two equal values do not cancel each other.
uint64_t mix(uint64_t digest, uint64_t value) {
  return (digest ^ value) * 0x9e3779b97f4a7c15ull + (digest >> 29);
}

/// Runs the collective that leads from one placement to the other, marked with its purpose, so that ranks
/// that call for different purposes fail with both named.
void redistribute(Stream& stream, const std::shared_ptr<Communicator>& comm, const Purpose& purpose,
                  Placement from, Placement to, const Tensor& full, const Tensor& slice) {
  const Serving serving(*comm, purpose);
  redistribute_flat(stream, *comm, from, to, full, slice);
}

Tensor f32_like(const Tensor& t) {
  return Tensor::empty(t.device(), {t.numel()}, DType::f32, MemoryClass::scratch, "fp32 weights");
}

}  // namespace

ParamGroup::ParamGroup(Device& device, Spec spec)
    : device_(device),
      spec_(std::move(spec)),
      trainable_(plan().trainable()),
      trains_(trainable_),
      inner_(axes().inner),
      outer_(axes().outer),
      layout_(plan().layout),
      staged_(plan().staged()),
      ranks_(axes().divisor),
      cell_(axes().cell()),
      part_begin_(plan().part_begin()),
      part_(plan().part_elements()),
      cell_begin_(plan().cell_begin()),
      cell_size_(plan().cell_elements()) {
  // A unit has up to three groups, which may be of one size.
  const std::string whose =
      spec_.owners.empty() ? fmt::format("unit '{}'{}", unit(), plan().suffix()) : unit();
  weights_ = Purpose("the weights of " + whose);
  gradients_ = Purpose("the gradients of " + whose);
  frozen_.assign(spec_.params.size(), !trainable_);
  touched_.assign(spec_.params.size(), false);
  released_.assign(spec_.params.size(), false);
  fresh_.assign(spec_.params.size(), true);
  updates_.assign(spec_.params.size(), 0);
  // settle_grad() walks the full buffer in order of place, which differs from the order of parameters.
  by_place_.resize(spec_.params.size());
  std::iota(by_place_.begin(), by_place_.end(), 0);
  std::sort(by_place_.begin(), by_place_.end(), [&](int a, int b) {
    return layout_->full_range(ParamId(a)).begin.value < layout_->full_range(ParamId(b)).begin.value;
  });
  for (size_t i = 0; i < spec_.params.size(); ++i) {
    spec_.params[i].state_->group = this;
    spec_.params[i].state_->views = this;
    spec_.params[i].state_->index = static_cast<int>(i);
  }
}

ParamGroup::~ParamGroup() {
  // Parameters are handles that users may hold longer: their calls throw from now on.
  for (auto& p : spec_.params) {
    p.state_->group = nullptr;
    p.state_->views = nullptr;
  }
}

std::vector<ParamGroup::Trait> ParamGroup::traits() const {
  std::vector<Trait> all;
  const auto add = [&](std::string what, uint64_t digest, std::initializer_list<uint64_t> values) {
    for (const uint64_t v : values) digest = mix(digest, v);
    all.push_back({std::move(what), digest});
  };
  const std::string whose = spec_.owners.empty() ? fmt::format("unit '{}'", unit()) : unit();
  add("the layout of " + whose, layout_->fingerprint(), {});
  // A bucket has the options of several units; each unit's options must be equal on all ranks.
  for (const FullyShardOptions& o : spec_.options)
    add("the mesh or an option of " + whose, digest_of_options(o), {});
  for (auto& p : spec_.params) {
    add(fmt::format("the initial values of parameter '{}'", p.name()), digest_of(p.init()), {});
    uint64_t rows = p.row_blocks().size();
    // All fields of a block count: ranks with different blocks would orthogonalize different matrices.
    for (auto& b : p.row_blocks())
      for (const int64_t v : {b.begin, b.size, b.stride, b.count, int64_t{b.dealt}})
        rows = mix(rows, static_cast<uint64_t>(v));
    add(fmt::format("the row blocks of parameter '{}'", p.name()), rows, {});
    if (!p.tensor_shard()) continue;
    const TensorShard& t = *p.tensor_shard();  // without its index, which differs between ranks
    add(fmt::format("the way parameter '{}' is cut from a larger one", p.name()),
        hash64(static_cast<uint64_t>(t.parts), t.mesh_dim),
        {static_cast<uint64_t>(t.dim), static_cast<uint64_t>(t.size)});
  }
  return all;
}

uint64_t ParamGroup::digest_of_options(const FullyShardOptions& o) const {
  uint64_t names = hash64(hash64(hash64(0, spec_.mesh.describe()), o.shard_dim), o.replicate_dim);
  names = hash64(hash64(names, o.tensor_dim), o.context_dim);
  for (const uint64_t v :
       {static_cast<uint64_t>(o.strategy), static_cast<uint64_t>(o.outer),
        static_cast<uint64_t>(o.reshard_after_forward), static_cast<uint64_t>(plan().dtype),
        static_cast<uint64_t>(plan().master), static_cast<uint64_t>(plan().master_place),
        static_cast<uint64_t>(o.reduce_dtype), static_cast<uint64_t>(plan().grad_dtype),
        static_cast<uint64_t>(o.cast_inputs), o.output_dtype ? static_cast<uint64_t>(*o.output_dtype) + 1 : 0,
        static_cast<uint64_t>(o.gradient_ranks), static_cast<uint64_t>(plan().axes.divisor),
        static_cast<uint64_t>(trainable_), static_cast<uint64_t>(replicated())})
    names = mix(names, v);
  return names;
}

uint64_t ParamGroup::fingerprint() const {
  uint64_t digest = hash64(0, unit());
  for (auto& t : traits()) digest = mix(digest, t.digest);
  return digest;
}

std::vector<ParamGroup::Buffer> ParamGroup::buffers() {
  std::vector<Buffer> all;
  for (const auto& [use, tensor] : {std::pair(BufferUse::rest, &rest_),
                                    {BufferUse::whole_gradient, &grad_full_},
                                    {BufferUse::gradient_part, &grad_part_}})
    if (const PlannedBuffer* b = plan().find(use)) all.push_back({tensor, spec_of(*b)});
  return all;
}

// Allocates the buffers that no collective uses; those of buffers() exist already. Slots and staging are
// shared between groups and belong to the runtime.
void ParamGroup::allocate() {
  const auto make = [&](Tensor& t, BufferUse use) {
    if (const PlannedBuffer* b = plan().find(use))
      t = Tensor::at(b->place, device_, {b->elements}, b->dtype, b->memory, b->name());
  };
  // An absent buffer of the plan leaves its tensor undefined.
  make(resident_, BufferUse::resident);
  make(master_, BufferUse::master);
  make(low_, BufferUse::master_low);
  // One copy in place of two: the update writes the cell that the next gather sends.
  if (!master_.defined()) {
    const int64_t begin = (needs_slot() ? 0 : part_begin_) + cell_begin_;
    master_ = rest_.flat(begin, begin + cell_size_);
  }
  // Without a gradient part of its own, the reduced part is a range of the unreduced gradient.
  if (trainable_ && !grad_part_.defined()) grad_part_ = grad_full_.flat(part_begin_, part_begin_ + part_);
}

void ParamGroup::initialise(Stream& stream, uint64_t seed) {
  seed_ = seed;
  // Padding stays zero: initial values are written to parameters only.
  ops::fill(stream, master_, 0);
  if (low_.defined()) ops::fill(stream, low_, 0);
  for (int p = 0; p < static_cast<int>(spec_.params.size()); ++p) {
    const Tensor own = shard(p),
                 values = own.dtype() == DType::f32 && own.place() == Place::device ? own : f32_like(own);
    initial_values(stream, spec_.params[static_cast<size_t>(p)], values, seed);
    if (own.dtype() == DType::f32)
      ops::copy(stream, own, values);
    else
      ops::write_weights(stream, own, shard_low(p), values);
  }
}

void ParamGroup::set_frozen(int p, bool frozen) {
  frozen_[static_cast<size_t>(p)] = frozen;
  // All ranks freeze alike, so a group without trained parameters skips its collectives on all ranks.
  trains_ = std::find(frozen_.begin(), frozen_.end(), false) != frozen_.end();
}

// Writes the masters, after an update, to where unshard() reads the weights. Collective over the group's
// mesh.
void ParamGroup::publish(Stream& stream, const Staging& staging) {
  // The communication buffer is the stored weights, or staging where the full buffer is a separate one.
  const Tensor whole = rest_.defined() ? rest_ : staging.gather.of(plan().dtype).flat(0, staging_elements());
  // Weights that are stored sharded are this rank's part already.
  const Tensor part = needs_slot() ? whole : part_of(whole);
  const Tensor cell = cell_of(part);
  // The optimizer may have written the copies already; otherwise the masters are converted here.
  const bool copied = std::exchange(copied_, false) && rest_.defined();
  if (!copied && cell.raw() != master_.raw())
    (cell.dtype() == master_.dtype() ? ops::copy : ops::cast)(stream, cell, master_);
  // First over the replicas, so that the part is complete, then over the shard group.
  redistribute(stream, spec_.comms.gather_outer, weights_, outer_.state, outer_.param, part, cell);
  if (needs_slot()) return;
  redistribute(stream, spec_.comms.gather_inner, weights_, inner_.state, inner_.param, whole, part);
  if (staged_) unpack(stream, resident_, whole);
}

// `slot` is the full buffer while the unit is in use; its memory passes to another unit after reshard().
void ParamGroup::unshard(Stream& stream, const Tensor& slot, const Staging& staging) {
  if (!needs_slot()) {
    // Stored unsharded: publish() has gathered the weights already.
    full_ = staged_ ? resident_ : rest_;
    return;
  }
  full_ = slot;
  const Tensor whole = staged_ ? staging.gather.of(plan().dtype).flat(0, staging_elements()) : slot;
  redistribute(stream, spec_.comms.gather_inner, weights_, inner_.param, Replicate(), whole, rest_);
  if (staged_) unpack(stream, full_, whole);
}

void ParamGroup::reshard() { full_ = Tensor(); }

void ParamGroup::open_grad(const Tensor& slot) {
  if (!trains_) return;
  // Writes no zeros: a fill would be one more pass over the full buffer.
  grad_open_ = needs_grad_slot() ? slot : grad_full_;
  // A new slot, or a new step, has undefined content: every range must be written before it is read.
  if (needs_grad_slot() || grads_fresh_) fresh_.assign(fresh_.size(), true);
  grads_fresh_ = false;
}

// Called before a reduction: it reads the full buffer, whose unwritten ranges have undefined content.
void ParamGroup::settle_grad(Stream& stream, bool last) {
  if (!trains_ || (reduce_target(last).is_partial() && !rounds_gradients())) return;
  // Walks the written ranges and fills the gaps between them, including padding, in as few fills as possible.
  int64_t end = 0;  // of the last range that was written
  const auto zero_until = [&](int64_t begin) {
    if (begin > end) ops::fill(stream, grad_open_.flat(end, begin), 0);
  };
  for (const int p : by_place_) {
    const FullRange r = layout_->full_range(ParamId(p));
    if (fresh_[static_cast<size_t>(p)] || r.empty()) continue;
    zero_until(r.begin.value);
    end = r.end.value;
  }
  zero_until(full_elements());
  fresh_.assign(fresh_.size(), false);
}

// Reduces the unit's gradient at the end of a backward. Before the last microbatch at most the shard group
// takes part; its sums add up in grad_part_.
void ParamGroup::reduce(Stream& stream, bool last, int microbatch, const Staging& staging) {
  if (!trains_) return;
  if (rounds_gradients()) return reduce_rounded(stream, last, microbatch, staging);
  const Placement target = reduce_target(last);
  if (!target.is_partial()) {
    // Partial targets stay unreduced on this rank; others are summed over the shard group.
    const Tensor gradient = wire_gradient(stream, staging);
    accumulate(stream, target.is_replicate() ? sum_whole(stream, gradient) : sum_to_part(stream, gradient));
  }
  if (!last) return;
  final_ = true;
  // Once in a step, with the sums over microbatches in grad_part_: the sum over the replicas, then the average
  // over all data-parallel ranks.
  const Tensor cell = cell_of(grad_part_);
  redistribute(stream, spec_.comms.reduce_outer, gradients_, outer_.grad_micro, outer_.grad, grad_part_,
               outer_.grad.is_shard() ? cell : grad_part_);
  // Only this rank's cell is scaled, since the optimizer reads no other elements. After the sum, one rounding
  // per element; exact for powers of two.
  if (ranks_ > 1) ops::scale(stream, cell, 1.0f / static_cast<float>(ranks_));
}

Tensor ParamGroup::wire_gradient(Stream& stream, const Staging& staging) const {
  // The collective may overwrite the open gradient: backward has ended, and the slot is released after the
  // reduction.
  if (!stages_reduce()) return grad_open_.flat(0, full_elements());
  const Tensor wire = staging.reduce.of(wire_dtype()).flat(0, staging_elements());
  pack(stream, wire, grad_open_);
  return wire;
}

Tensor ParamGroup::sum_whole(Stream& stream, const Tensor& gradient) {
  // In place: the sum replaces the open gradient, or its copy in staging.
  redistribute(stream, spec_.comms.reduce_inner, gradients_, Partial(), Replicate(), gradient, gradient);
  return part_of(gradient);
}

Tensor ParamGroup::sum_to_part(Stream& stream, const Tensor& gradient) {
  // The first sum of a step can be received in its final place; later ones are received elsewhere and added.
  const bool in_place = part_fresh_ && gradient.dtype() == grad_part_.dtype() && !rounds_gradients();
  const Tensor part = in_place ? grad_part_ : part_of(gradient);
  redistribute(stream, spec_.comms.reduce_inner, gradients_, Partial(), Shard(0), gradient, part);
  return part;
}

void ParamGroup::accumulate(Stream& stream, const Tensor& part) {
  const bool fresh = std::exchange(part_fresh_, false);
  if (part.raw() == grad_part_.raw()) return;  // it was received there
  // Added in f32: a bf16 wire rounds each microbatch's part, not the running sum.
  if (!fresh) {
    ops::scaled_add(stream, grad_part_, 1.0f, part);
  } else if (part.dtype() == DType::f32) {
    ops::copy(stream, grad_part_, part);
  } else {
    ops::cast(stream, grad_part_, part);
  }
}

void ParamGroup::close_grad() { grad_open_ = Tensor(); }

// Clears marks only: memory is overwritten by the first writer of the next step.
void ParamGroup::reset_grads() {
  grads_fresh_ = part_fresh_ = true;
  fresh_.assign(fresh_.size(), true);  // also in a buffer that is still open
                                       // (ShardRuntime::set_hold_gradients())
  touched_.assign(touched_.size(), false);
  released_.assign(released_.size(), false);
  final_ = false;
}

void ParamGroup::release_grads(Stream& stream, const std::vector<bool>& which) {
  if (!trainable_) return;
  const bool all = std::find(which.begin(), which.end(), false) == which.end();
  // All parameters of the group: no zeros need to be written.
  if (!which.empty() && all) return reset_grads();
  for (size_t p = 0; p < which.size(); ++p) {
    if (!which[p]) continue;
    touched_[p] = false;
    // Final gradients are only marked, since the next step starts from zero anyway; accumulated ones are
    // zeroed.
    if (final_) {
      released_[p] = true;
    } else {
      // Ordered before the next microbatch's reduction, whose stream waits for compute.
      zero_grad(stream, static_cast<int>(p));
    }
  }
  // The last set with final gradients has released them.
  if (final_ && !grads_final()) reset_grads();
}

void ParamGroup::zero_grad(Stream& stream, int p) {
  fresh_[static_cast<size_t>(p)] = true;  // for gradients that stay unreduced between microbatches
  if (part_fresh_) return;
  if (rounds_gradients() && grad_full_.defined()) {
    const FullRange r = layout_->full_range(ParamId(p));
    return ops::fill(stream, grad_full_.flat(r.begin.value, r.end.value), 0);
  }
  const int64_t slice = layout_->slice();
  // This rank's part consists of whole slices of the layout's ranks, each with a piece of the parameter.
  for (int64_t r = part_begin_ / slice; r < (part_begin_ + part_) / slice; ++r) {
    const RankId rank(static_cast<int>(r));
    const int64_t begin = r * slice + layout_->local_begin(ParamId(p), rank).value - part_begin_;
    if (const int64_t n = layout_->piece(ParamId(p), rank).size(); n > 0)
      ops::fill(stream, grad_part_.flat(begin, begin + n), 0);
  }
}

bool ParamGroup::grads_final() const {
  for (int p = 0; p < static_cast<int>(released_.size()); ++p)
    if (grad_final(p)) return true;
  return false;
}

Tensor ParamGroup::data(int p) const {
  if (!full_.defined())
    throw InvalidArgument(
        fmt::format("parameter '{}' is sharded; its data() is valid while unit '{}' is unsharded: call the "
                    "module as module(x), not module.forward(x), which unshards nothing; outside of calls "
                    "use Unit::unshard()",
                    spec_.params[static_cast<size_t>(p)].name(), unit_of(p)));
  const FullRange r = layout_->full_range(ParamId(p));
  return full_.flat(r.begin.value, r.end.value).view(spec_.params[static_cast<size_t>(p)].shape());
}

Tensor ParamGroup::grad(int p) {
  const GradTarget target = grad_for_overwrite(p);
  if (target.beta == 0) ops::fill(device_.compute(), target.grad, 0);
  return target.grad;
}

// Called by backward code once for each contribution; `beta` says whether the kernel overwrites or adds.
GradTarget ParamGroup::grad_for_overwrite(int p) {
  const Parameter& param = spec_.params[static_cast<size_t>(p)];
  if (frozen(p))
    throw InvalidArgument(fmt::format("parameter '{}' is frozen and has no gradient", param.name()));
  if (!grad_open_.defined())
    throw InvalidArgument(
        fmt::format("grad() of '{}' outside the backward of unit '{}'", param.name(), unit_of(p)));
  // From now on the gradient counts as requested, even if the caller writes only zeros.
  touched_[static_cast<size_t>(p)] = true;
  // The first writer may overwrite (beta 0); later ones add (beta 1).
  const bool fresh = fresh_[static_cast<size_t>(p)];
  // The caller must write all elements now: settle_grad() takes the range as written.
  fresh_[static_cast<size_t>(p)] = false;
  const FullRange r = layout_->full_range(ParamId(p));
  return {grad_open_.flat(r.begin.value, r.end.value).view(param.shape()), fresh ? 0.0f : 1.0f};
}

Tensor ParamGroup::cell_view(const Tensor& cell, int p) const {
  const int64_t begin = layout_->local_begin(ParamId(p), RankId(cell_)).value;
  return cell.flat(begin, begin + shard_range(p).size());
}

// Returns the stored pieces of a parameter on this rank, by ranges of the parameter. Views, without a copy.
std::vector<ParamGroup::Piece> ParamGroup::resting(int p) const {
  const Parameter& param = spec_.params[static_cast<size_t>(p)];
  // Rows of padding of an uneven tensor-parallel cut are in memory, and in no piece.
  const int64_t held =
      param.tensor_shard() ? held_elements(param.shape(), *param.tensor_shard()) : param.numel();
  if (!needs_slot()) {
    const int64_t begin = layout_->full_range(ParamId(p)).begin.value;
    return {{{ParamIndex(0), ParamIndex(held)}, (staged_ ? resident_ : rest_).flat(begin, begin + held)}};
  }
  std::vector<Piece> pieces;
  // The stored part spans one slice per replica; the parameter has a piece in each.
  const int64_t slice = layout_->slice();
  for (int64_t r = part_begin_ / slice; r < (part_begin_ + part_) / slice; ++r) {
    const RankId rank(static_cast<int>(r));
    const ParamRange piece = clipped(layout_->piece(ParamId(p), rank), held);
    const int64_t begin = r * slice + layout_->local_begin(ParamId(p), rank).value - part_begin_;
    pieces.push_back({piece, rest_.flat(begin, begin + piece.size())});
  }
  return pieces;
}

Tensor ParamGroup::shard(int p) const { return cell_view(master_, p); }
Tensor ParamGroup::shard_low(int p) const { return low_.defined() ? cell_view(low_, p) : Tensor(); }

Tensor ParamGroup::model_copy(int p) const {
  // Returns the cell of the stored weights in the compute dtype. Undefined where publish() converts into
  // staging, and where the masters are the stored weights.
  if (!rest_.defined() || rest_.dtype() == master_.dtype()) return {};
  return cell_view(cell_of(needs_slot() ? rest_ : part_of(rest_)), p);
}

Tensor ParamGroup::grad_shard(int p) const {
  if (!trainable_)
    throw InvalidArgument(fmt::format("parameter '{}' is frozen and has no gradient",
                                      spec_.params[static_cast<size_t>(p)].name()));
  return cell_view(grad_part_.flat(cell_begin_, cell_begin_ + cell_size_), p);
}

ParamRange ParamGroup::shard_range(int p) const {
  const Parameter& param = spec_.params[static_cast<size_t>(p)];
  const ParamRange piece = layout_->piece(ParamId(p), RankId(cell_));
  return param.tensor_shard() ? clipped(piece, held_elements(param.shape(), *param.tensor_shard())) : piece;
}

DTensor ParamGroup::dtensor(int p) const {
  const int64_t begin = layout_->local_begin(ParamId(p), RankId(cell_)).value;  // including the parameter's
                                                                                // padding
  const int64_t end = begin + layout_->piece(ParamId(p), RankId(cell_)).size();
  Stream& compute = device_.compute();
  Tensor piece = ops::weights_as_f32(compute, master_.flat(begin, end),
                                     low_.defined() ? low_.flat(begin, end) : Tensor());
  if (piece.place() == Place::host) {  // collectives need memory of the device
    const Tensor rest = std::exchange(piece, f32_like(piece));
    ops::copy(compute, piece, rest);
  }
  return DTensor::from_layout(spec_.mesh, sharded_over(), layout_, p, piece);
}

/// Calls f(offset in the communication buffer, offset in the full buffer, elements, ranks) for the pieces of each
/// parameter: those of consecutive ranks that are equally long, then a shorter one. They are slice() apart in the
/// communication buffer, which is ordered by rank, and adjacent in the full buffer. Holds for LayoutPolicy::even_rows,
/// the policy that has two buffers.
template <class F>
void ParamGroup::for_pieces(F f) const {
  for (int p = 0; p < static_cast<int>(spec_.params.size()); ++p) {
    const int64_t piece = layout_->piece(ParamId(p), RankId(0)).size();
    if (piece == 0) continue;
    const FullRange full = layout_->full_range(ParamId(p));
    const int64_t comm = layout_->local_begin(ParamId(p), RankId(0)).value;
    const int64_t elements = full.end.value - full.begin.value, ranks = elements / piece;
    f(comm, full.begin.value, piece, ranks);
    if (const int64_t rest = elements - ranks * piece; rest > 0)
      f(ranks * layout_->slice() + comm, full.begin.value + ranks * piece, rest, 1);
  }
}

void ParamGroup::pack(Stream& stream, const Tensor& comm, const Tensor& full) const {
  const bool casts = comm.dtype() != full.dtype();
  // One kernel where both buffers have one order; otherwise one per run of pieces, and one per piece that is cast.
  if (!staged_) return (casts ? ops::cast : ops::copy)(stream, comm, full);
  const int64_t slice = layout_->slice();
  for_pieces([&](int64_t c, int64_t f, int64_t n, int64_t ranks) {
    if (!casts)
      return ops::strided_copy(stream, comm.flat(c, comm.numel()), slice, full.flat(f, full.numel()), n,
                               ranks, n);
    for (int64_t r = 0; r < ranks; ++r)
      ops::cast(stream, comm.flat(c + r * slice, c + r * slice + n), full.flat(f + r * n, f + (r + 1) * n));
  });
}

void ParamGroup::unpack(Stream& stream, const Tensor& full, const Tensor& comm) const {
  for_pieces([&](int64_t c, int64_t f, int64_t n, int64_t ranks) {
    ops::strided_copy(stream, full.flat(f, full.numel()), n, comm.flat(c, comm.numel()), layout_->slice(),
                      ranks, n);
  });
}

}  // namespace sherd
