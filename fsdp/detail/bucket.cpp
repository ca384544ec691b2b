#include <sherd/fsdp/detail/bucket.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include <sherd/fsdp/detail/unit_context.h>
#include <sherd/fsdp/update_set.h>

namespace sherd {

Bucket::Bucket(UnitContext& context, Spec spec)
    : context_(context),
      // In the pool of gradient slots, indices of buckets follow those of units.
      slot_user_(static_cast<int>(context.names.size()) + spec.number),
      units_(std::move(spec.units)),
      ended_(units_.size(), false),
      group_(std::move(spec.group)) {}

void Bucket::sync() {
  if (!stale_) return;
  context_.log.add("gather", group_->unit());
  Stream& stream = *context_.gather;
  stream.wait(context_.weights_ready);  // an update on the compute stream wrote the master weights last
  group_->publish(stream, context_.staging);
  ready_ = stream.record();
  stale_ = false;
}

void Bucket::unshard() {
  sync();
  // No slot: buckets exist only where weights are stored unsharded. This makes views and queues nothing.
  group_->unshard(*context_.gather, {}, context_.staging);
}

void Bucket::weights_changed() {
  stale_ = true;
  group_->reshard();
}

void Bucket::unit_begins(int unit) {
  // A further backward of the unit in this pass: wait for its end again.
  for (size_t i = 0; i < units_.size(); ++i)
    if (units_[i] == unit) ended_[i] = false;
  open();
}

void Bucket::open() {
  // Gradients held over microbatches are open already and continue to accumulate.
  if (std::exchange(held_, false) || open_) return;
  if (context_.gradients.has(slot_user_))
    gradients_ = context_.gradients.acquire(slot_user_, context_.device.compute());
  group_->open_grad(gradients_ ? gradients_.memory().flat(0, group_->grad_slot_elements()) : Tensor());
  open_ = true;
}

bool Bucket::holds() const {
  return context_.hold_gradients && !context_.last_microbatch && gradients_ && !group_->reduces_once();
}

void Bucket::unit_ended(int unit) {
  if (!open_) return;
  // Gradient accumulation without communication: nothing is reduced before the last microbatch.
  if (holds()) {
    held_ = true;
    return;
  }
  bool due_again = false;
  for (size_t i = 0; i < units_.size(); ++i) {
    if (units_[i] == unit) ended_[i] = true;
    // The unit's own backward, which ends here, is due until it has ended.
    due_again = due_again || context_.order.due(units_[i]) > (units_[i] == unit ? 1 : 0);
  }
  const bool all = std::find(ended_.begin(), ended_.end(), false) == ended_.end();
  // A sum is final only if no unit of the bucket has a further pending backward. The reduction starts here,
  // while backwards of later units continue.
  if (all) reduce(context_.last_microbatch && !due_again);
}

void Bucket::pass_ended(bool last) {
  if (last) {
    // Units that the pass left out have zero gradients, but the bucket's collective runs on all ranks.
    // Buckets reduce in the model's order here, so all ranks pair them in the same way.
    if (!finished_ && !left_out_) reduce(true);
  } else if (open_ && !holds()) {
    reduce(false);
  }
}

void Bucket::reduce(bool last) {
  open();  // in a last pass that has left all of its units out
  context_.log.add("reduce", group_->unit());
  Stream& compute = context_.device.compute();
  Stream& stream = *context_.reduce;
  // Same as in Unit: zeros and backward's writes are on compute; the reduction waits for them and overlaps
  // later units.
  group_->settle_grad(compute, last);
  stream.wait(compute.record());
  group_->reduce(stream, last, context_.microbatch, context_.staging);
  finished_ = last;
  context_.reduced = stream.record();
  close(context_.reduced);
  if (!context_.overlap_reduce) compute.wait(context_.reduced);
}

void Bucket::close(const Event& free) {
  group_->close_grad();
  gradients_.end(free);
  open_ = held_ = false;
  ended_.assign(ended_.size(), false);
}

void Bucket::set_left_out(bool left_out) {
  left_out_ = left_out;
  if (!left_out) return;
  // Backwards of some units may have written to the slot: the next holder waits for compute.
  if (open_) close(context_.device.compute().record());
  release_gradients(nullptr);
}

void Bucket::drop_step(const UpdateSet* set) {
  // Unreduced gradients remain after an exception. Gradients held for further microbatches stay when only one
  // set of several releases its own.
  if (open_ && !(held_ && set != nullptr)) close(context_.device.compute().record());
  left_out_ = false;
  release_gradients(set);
}

void Bucket::release_gradients(const UpdateSet* set) {
  if (set == nullptr) {
    group_->reset_grads();
  } else {
    group_->release_grads(context_.device.compute(), set->members_of(*group_));
  }
  finished_ = finished_ && group_->grads_final();
}

void Bucket::recovered() {
  ready_ = {};
  close({});
  group_->forget_copies();
}

}  // namespace sherd
