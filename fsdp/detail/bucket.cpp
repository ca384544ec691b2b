#include <sherd/fsdp/detail/bucket.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include <sherd/fsdp/detail/unit_context.h>
#include <sherd/fsdp/update_set.h>

namespace sherd {

Bucket::Bucket(UnitContext& context, Spec spec)
    : context_(context),
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
  group_->unshard(*context_.gather, {}, context_.staging);
}

void Bucket::weights_changed() {
  stale_ = true;
  group_->reshard();
}

void Bucket::unit_begins(int unit) {
  for (size_t i = 0; i < units_.size(); ++i)
    if (units_[i] == unit) ended_[i] = false;
  open();
}

void Bucket::open() {
  if (std::exchange(held_, false) || open_) return;
  if (context_.gradients.has(slot_user_))
    gradients_ = context_.gradients.acquire(slot_user_, context_.device.compute());
  group_->open_grad(gradients_ ? gradients_.memory().flat(0, group_->full_elements()) : Tensor());
  open_ = true;
}

bool Bucket::holds() const { return context_.hold_gradients && !context_.last_microbatch && gradients_; }

void Bucket::unit_ended(int unit) {
  if (!open_) return;
  if (holds()) {
    held_ = true;
    return;
  }
  bool due_again = false;
  for (size_t i = 0; i < units_.size(); ++i) {
    if (units_[i] == unit) ended_[i] = true;
    // Its own backward, which ends here, is due until it has ended.
    due_again = due_again || context_.order.due(units_[i]) > (units_[i] == unit ? 1 : 0);
  }
  const bool all = std::find(ended_.begin(), ended_.end(), false) == ended_.end();
  if (all) reduce(context_.last_microbatch && !due_again);
}

void Bucket::pass_ended(bool last) {
  if (last) {
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
  group_->settle_grad(compute, last);
  stream.wait(compute.record());
  group_->reduce(stream, last, context_.staging);
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
  if (open_) close(context_.device.compute().record());
  release_gradients(nullptr);
}

void Bucket::drop_step(const UpdateSet* set) {
  // Whole gradients that an exception has left behind. What is held for further microbatches stays, where one
  // set of several is done with its own.
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
