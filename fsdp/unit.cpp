#include <sherd/fsdp/unit.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include <sherd/fsdp/detail/bucket.h>
#include <sherd/fsdp/detail/unit_context.h>
#include <sherd/fsdp/update_set.h>

namespace sherd {

Unit::Unit(UnitContext& context, Spec spec)
    : context_(&context),
      name_(std::move(spec.name)),
      number_(spec.number),
      root_(spec.root),
      reshard_after_forward_(spec.reshard_after_forward),
      height_(spec.height),
      precision_(spec.precision),
      groups_(std::move(spec.groups)),
      params_(std::move(spec.params)),
      buckets_(std::move(spec.buckets)) {}

// Throws InvalidArgument once the root is destroyed. The noexcept verbs check context_ themselves.
UnitContext& Unit::context() const {
  if (context_ == nullptr)
    throw InvalidArgument(fmt::format(
        "unit '{}': the root that it was sharded with is gone, and its weights with it; keep the root "
        "alive while parts of it are used, or wrap them again with fully_shard()",
        name_));
  return *context_;
}

void Unit::sync() {
  UnitContext& context = this->context();
  if (!stale_) return;
  Stream& stream = *context.gather;
  // Publishing reads the master weights, which an update on the compute stream wrote last.
  stream.wait(context.weights_ready);
  // Collective over the replicas, and over the shard group where weights are stored unsharded. All ranks
  // queue the units' publishes in one order.
  for (auto& g : groups_) g->publish(stream, context.staging);
  ready_ = stream.record();
  stale_ = false;
  for (Bucket* b : buckets_) b->sync();
}

void Unit::unshard() {
  UnitContext& context = this->context();
  // A prefetched unit returns here; a nested use does, too.
  if (unsharded()) return;
  Stream& stream = *context.gather;
  // An update inside of Unsharded: compute may still read the weights before it.
  if (kept_.defined()) stream.wait(context.device.compute().record());
  if (!whole_ && !kept_.defined() && context.whole.has(number_)) {
    sync();  // needs no slot, so it does not wait for one
    // The slot's last holder was read by operations on the compute stream. The gather stream waits for the end
    // of those operations alone, not for all of compute, so the gather overlaps the unit that computes now.
    whole_ = context.whole.acquire(number_, stream);
  }
  // After acquire(): an unshard that fails by OutOfMemory and is retried is in the log once.
  context.log.add("unshard", name_);
  sync();
  // Groups of several dtypes share the slot of bytes, one range after the other.
  const Tensor memory = kept_.defined() ? kept_ : whole_ ? whole_.memory() : Tensor();
  int64_t at = 0;
  for (auto& g : groups_) {
    Tensor range;
    if (g->needs_slot()) {
      range = memory.flat(at, at + g->full_elements() * size_of(g->plan().dtype)).as(g->plan().dtype);
      at += g->plan().slot_bytes();
    }
    g->unshard(stream, range, context.staging);
  }
  for (Bucket* b : buckets_) b->unshard();
  // Compute waits for this event in wait(), directly before the first use. Without a slot nothing was queued
  // after sync(), whose event stays: sync_ahead() may have queued the gathers of later units since.
  if (memory.defined()) ready_ = stream.record();
  unsharded_ = true;
}

void Unit::wait() {
  // Queues waits on compute and returns; the host does not block. A bucket has an event of its own. Another
  // of its units may have queued the bucket's gather.
  Stream& compute = context().device.compute();
  compute.wait(ready_);
  for (Bucket* b : buckets_) compute.wait(b->ready());
}

void Unit::keep() {
  UnitContext& context = this->context();
  if (context.order.open(number_) > 0)
    throw InvalidArgument(
        fmt::format("Unsharded: unit '{}' is in use; make it outside of forwards and backwards", name_));
  if (kept_.defined() || !context.whole.has(number_)) return;
  reshard();
  int64_t bytes = 0;
  for (const auto& g : groups_)
    if (g->needs_slot()) bytes += g->plan().slot_bytes();
  kept_ = Tensor::empty(context.device, {bytes}, DType::u8, MemoryClass::gathered, "unsharded parameters");
}

void Unit::release() noexcept {
  if (!kept_.defined()) return;
  try {
    // The next owner of the memory writes on compute, behind a gather that no use has waited for.
    if (context_ != nullptr && unsharded_) context_->device.compute().wait(ready_);
  } catch (...) {  // a failed stream runs nothing more
  }
  for (auto& g : groups_) g->reshard();
  unsharded_ = false;
  kept_ = Tensor();
}

void Unit::prefetch() {
  // acquire() would reshard an idle holder, which may compute next, or add a slot. A prefetch needs neither:
  // the unit's own use gathers later.
  if (unsharded() || (!kept_.defined() && context().whole.held(number_))) return;
  unshard();
}

void Unit::reshard() {
  UnitContext& context = this->context();
  // Without a lease the weights are stored unsharded and stay so, or they are not gathered.
  if (!whole_) return;
  for (auto& g : groups_) g->reshard();
  unsharded_ = false;
  // The next gather into the slot waits for the compute operations queued so far, which may read the
  // parameters. If none of them does, this event precedes the end of the parameters' own gather. The next
  // gather still follows it, since both are on the gather stream.
  whole_.end(context.device.compute().record());
}

void Unit::gather_ahead(const std::vector<int>& units) {
  UnitContext& context = this->context();
  try {
    // Prefetch first, so that these gathers are queued before compute waits for its own.
    for (const int u : units) context.units[static_cast<size_t>(u)]->prefetch();
    // With buckets, the new weights of all units are synced at the start of the root's pass; they need no slot.
    if (root_ && !units.empty() && !context.buckets.empty()) sync_ahead();
    wait();
  } catch (...) {
    context.order.take_back(number_);
    throw;
  }
}

void Unit::sync_ahead() {
  // The recorded order is empty before the first forward has ended: each unit then syncs at its own use.
  UnitContext& context = this->context();
  for (const int u : context.order.recorded()) context.units[static_cast<size_t>(u)]->sync();
}

void Unit::require_use(bool backward, const char* verb) const {
  const PrefetchOrder::Use* use = context_->order.innermost(number_);
  if (use == nullptr || use->backward != backward)
    throw InvalidArgument(fmt::format("{}() of unit '{}' without its pre_{}() before it", verb, name_,
                                      backward ? "backward" : "forward"));
}

void Unit::require_others_ended(const char* verb) const {
  const PrefetchOrder& order = context_->order;
  // Only the end of the root's outermost use is checked; order.open() counts that use, too.
  if (!root_ || order.open(number_) != 1 || order.open() == 1) return;
  std::vector<std::string> names;
  for (int u = 0; u < order.root(); ++u)
    if (order.open(u) > 0) names.push_back(context_->names[static_cast<size_t>(u)]);
  throw InvalidArgument(
      fmt::format("{}() of the root while units are in use: '{}'; end each of their uses by post_forward(), "
                  "post_backward() or the cancel_ verb before the root's",
                  verb, fmt::join(names, "', '")));
}

uint64_t Unit::step() const { return context().order.step(); }

ForwardRecorder* Unit::exchange_recorder(ForwardRecorder* recorder) noexcept {
  return context_ != nullptr ? std::exchange(context_->recorder, recorder) : nullptr;
}

ForwardRecorder* Unit::recorder() const noexcept {
  return context_ != nullptr ? context_->recorder : nullptr;
}

int Unit::context_ranks() const { return context().context_ranks; }

void Unit::note_whole_sequences() { context().context_exchanged = true; }

void Unit::pre_forward(ForwardKind kind, const char* how_to_drop) {
  UnitContext& context = this->context();
  if (kind == ForwardKind::recorded) context.how_to_drop = how_to_drop;
  if (kind != ForwardKind::evaluation) context.require_whole_step(fmt::format("forward of unit '{}'", name_));
  // This unit's own gather precedes those of the units after it.
  unshard();
  gather_ahead(context.order.begin_forward(number_, kind));
  context.log.add(context.order.innermost(number_)->recomputes ? "recompute" : "forward", name_);
}

void Unit::post_forward() {
  PrefetchOrder& order = context().order;
  require_use(false, "post_forward");
  require_others_ended("post_forward");
  // Uses are counted before this one ends: 1 is this use alone.
  const bool outermost = order.open(number_) == 1;
  const bool evaluating = order.due(number_) == 0;
  // The backward of the root, or of a recomputed forward, follows directly: its parameters stay unsharded.
  const bool backward_next = !evaluating && (root_ || order.innermost(number_)->recomputes);
  const bool kept = backward_next || !reshard_after_forward_;
  if (outermost && !kept) reshard();
  // Last: the checks above read this use as the innermost one.
  order.end_forward(number_);
}

void Unit::cancel_forward() noexcept {
  if (context_ == nullptr) return;
  PrefetchOrder& order = context_->order;
  const PrefetchOrder::Use* use = order.innermost(number_);
  if (use == nullptr || use->backward) return;
  // The host's exception handler runs this; operations queued before it still run.
  order.cancel(number_);
  try {
    // An outer use of the same unit would still need the parameters.
    if (order.open(number_) == 0) reshard();
  } catch (...) {  // a failed stream rethrows its error at its next use
  }
}

void Unit::pre_backward() {
  UnitContext& context = this->context();
  PrefetchOrder& order = context.order;
  context.require_whole_step(fmt::format("backward of unit '{}'", name_));
  if (finished_)
    throw InvalidArgument(fmt::format(
        "backward of unit '{}' after the last microbatch's: its gradients are final. Step the optimizer "
        "first (each of them), give the gradients up by zero_grad(), or announce more microbatches "
        "(Accumulate, "
        "set_last_microbatch(false))",
        name_));
  if (order.due(number_) == 0)
    throw InvalidArgument(
        fmt::format("backward of unit '{}' without a forward in training mode before it", name_));
  unshard();
  // Read before begin_backward(), which counts this backward.
  const bool outermost = order.open_backwards(number_) == 0;
  gather_ahead(order.begin_backward(number_));
  context.log.add("backward", name_);
  // Gradients held over microbatches are open for this backward now; suspended() counts them.
  held_ = false;
  // A nested or resumed backward adds to the gradients that are already open.
  if (!outermost || gradients_open_) return;
  try {
    open_gradients();
  } catch (...) {
    // Without a gradient buffer the backward cannot run. This ends its use and marks the step as broken.
    cancel_backward();
    throw;
  }
}

void Unit::open_gradients() {
  UnitContext& context = this->context();
  // Backward writes the gradients on the compute stream, and the slot's last holder was read by its reduction
  // on the reduce stream. So compute waits for a reduction here. With two slots it is the one before the
  // last, which had a whole unit's backward to finish. With one slot (overlap_reduce off) it is the last one.
  if (!gradients_ && context.gradients.has(number_))
    gradients_ = context.gradients.acquire(number_, context.device.compute());
  // Groups share the unit's slot, one range after the other.
  int64_t at = 0;
  for (auto& g : groups_) {
    const int64_t n = g->grad_slot_elements();
    g->open_grad(n > 0 ? gradients_.memory().flat(at, at + n) : Tensor());
    at += n;
  }
  gradients_open_ = true;
  // Last: when a bucket cannot open, cancel_backward() closes the unit's own gradients.
  for (Bucket* b : buckets_) b->unit_begins(number_);
}

void Unit::post_backward(bool reduce) {
  UnitContext& context = this->context();
  PrefetchOrder& order = context.order;
  require_use(true, "post_backward");
  require_others_ended("post_backward");
  const bool outermost = order.open_backwards(number_) == 1;
  // Inner backwards of a nested use leave their gradients for the outermost one.
  if (outermost && reduce) {
    reduce_gradients();
    // A forward of the same unit around this backward still reads the weights.
    if (order.open(number_) == 1) reshard();
  }
  // A suspended backward ends its use here, too; its gradients and weights stay.
  order.end_backward(number_);
}

void Unit::reduce_gradients() {
  UnitContext& context = this->context();
  // Further pending backwards of this unit will still add to its gradients.
  const bool last = context.last_microbatch && context.order.due(number_) <= 1;
  bool trains = true;
  // Gradient accumulation without communication: the gradients stay open, unreduced, until the last
  // microbatch.
  const bool scatters = std::ranges::any_of(groups_, [](auto& g) { return !g->reduces_once(); });
  if (context.hold_gradients && !context.last_microbatch && gradients_ && scatters) {
    context.log.add("hold", name_);
    held_ = true;
  } else {
    // The root's last backward: units and parameters that no backward reached must be settled before its own
    // reduction.
    if (root_ && context.order.due(number_) <= 1) trains = context.complete_backward();
    finish_gradients(last);
    // When every parameter is frozen no gradient is final. Optimizers then throw at their step.
    finished_ = finished_ && trains;
  }
  // After the unit's own reduction, on all ranks: both may use the same communicators.
  for (Bucket* b : buckets_) b->unit_ended(number_);
  if (!root_) return;
  // Read by require_gradients(): a backward of inner units alone does not make gradients final.
  context.root_backward = true;
  // Forwards that are recorded now may be dropped. require_gradients() then completes the step.
  context.awaits_backward = context.last_microbatch && !last;
  // Units that this pass left out have not reported their end to their buckets.
  for (Bucket* b : context.buckets) b->pass_ended(last);
  // Optimizers and norms read the gradients on the compute stream. It waits for all reductions at the end of
  // the step at once, and not unit by unit.
  if (finished_) context.device.compute().wait(context.reduced);
  if (!context.last_microbatch) ++context.microbatch;
}

void Unit::drop_backward(bool reduce) {
  UnitContext& context = this->context();
  // The suspended backwards were the last of this pass, so their open gradients are reduced now.
  if (reduce && gradients_open_ && context.order.open(number_) == 0) {
    reduce_gradients();
    reshard();
  }
  // After the reduction, which counts this backward among those that are due.
  context.order.drop_backward(number_);
}

void Unit::break_step() noexcept {
  if (context_ != nullptr) context_->order.break_step(number_);
}

void Unit::cancel_backward() noexcept {
  if (context_ == nullptr) return;
  PrefetchOrder& order = context_->order;
  const PrefetchOrder::Use* use = order.innermost(number_);
  if (use == nullptr || !use->backward) return;
  order.cancel(number_);
  if (order.open_backwards(number_) > 0) return;
  try {
    // No reduction reads the gradients: the slot is free after the backward's operations. The event is on
    // compute because backward wrote there.
    close_gradients(context_->device.compute().record());
    if (order.open(number_) == 0) reshard();
  } catch (...) {  // as above
  }
}

void Unit::finish_gradients(bool last) {
  UnitContext& context = this->context();
  context.log.add("post", name_);
  Stream& compute = context.device.compute();
  Stream& stream = *context.reduce;
  // Zeros for gradients that backward left out are written on compute, after backward's own writes to the
  // same buffer.
  for (auto& g : groups_) g->settle_grad(compute, last);
  // The reduction reads the data that compute has written until here. Compute does not wait for the reduction
  // and continues with the next unit's backward.
  stream.wait(compute.record());
  // Groups reduce one after the other: they share the staging buffers. All ranks have the same groups in this
  // order.
  for (auto& g : groups_) g->reduce(stream, last, context.microbatch, context.staging);
  finished_ = last;
  // One event for all units: the stream runs in order, so the latest event covers the earlier ones.
  context.reduced = stream.record();
  close_gradients(context.reduced);
  // Without overlap the next unit's backward starts after this reduction, in the only slot.
  if (!context.overlap_reduce) compute.wait(context.reduced);
}

void Unit::close_gradients(const Event& free) {
  held_ = false;
  for (auto& g : groups_) g->close_grad();
  gradients_.end(free);
  gradients_open_ = false;
}

void Unit::drop_step(const UpdateSet* set) {
  // Units that were kept for a pending backward still hold their slots.
  reshard();
  // An exception came between the backwards of one pass. Gradients held for further microbatches stay when
  // only one set of several releases its own.
  if (gradients_open_ && !(held_ && set != nullptr)) close_gradients(context().device.compute().record());
  release_gradients(set);
}

void Unit::release_gradients(const UpdateSet* set) {
  for (auto& g : groups_) {
    if (set == nullptr) {
      g->reset_grads();
    } else {
      g->release_grads(context().device.compute(), set->members_of(*g));
    }
  }
  const auto waits = [](const std::unique_ptr<ParamGroup>& g) { return g->grads_final(); };
  const auto waits_in = [](const Bucket* b) { return b->group().grads_final(); };
  // With several optimizers the gradients of another set may still be final. The unit stays finished until
  // the last set releases its own.
  finished_ = finished_ && (std::any_of(groups_.begin(), groups_.end(), waits) ||
                            std::any_of(buckets_.begin(), buckets_.end(), waits_in));
}

void Unit::weights_changed() {
  // Returns without communication: the gathers follow at the next use, or in sync_ahead().
  stale_ = true;
  unsharded_ = false;
  for (auto& g : groups_) g->reshard();
}

void Unit::recovered() {
  // Operations behind these events were dropped. An empty event makes the next holder of a slot wait for
  // nothing.
  ready_ = {};
  whole_.end({});
  close_gradients({});
  for (auto& g : groups_) g->forget_copies();
}

void Unit::detach() {
  // The streams have ended before (~ShardRuntime). Leases end here, while the pools still exist.
  context_ = nullptr;
  unsharded_ = false;
  kept_ = Tensor();
  whole_.end({});
  gradients_.end({});
  groups_.clear();
  buckets_.clear();
  params_.clear();
}

}  // namespace sherd
