#include <sherd/fsdp/unit.h>

#include <fmt/format.h>

#include <sherd/fsdp/runtime.h>
#include <sherd/kernels/ops.h>

namespace sherd {

Unit::Unit(ShardRuntime& runtime, std::string name, int index, bool root)
    : runtime_(runtime), name_(std::move(name)), index_(index), root_(root) {}

void Unit::sync() {
  if (!stale_) return;
  Stream& stream = *runtime_.gather_;
  stream.wait(runtime_.weights_ready_);
  for (auto& g : groups_) g->publish(stream, runtime_.staging_);
  ready_ = stream.record();
  stale_ = false;
}

void Unit::unshard() {
  if (unsharded()) return;
  runtime_.record("unshard", *this);
  Stream& stream = *runtime_.gather_;
  sync();
  Tensor buffer;
  if (slot_ >= 0) {
    auto& slot = runtime_.slots_[static_cast<size_t>(slot_)];
    if (slot.occupant != nullptr && slot.occupant != this) {
      if (slot.occupant->in_use_)
        throw NotSupported(fmt::format(
            "unit '{}' needs the gather buffer that unit '{}' is using: units of one nesting height "
            "may not be in use at once; end the use of one before that of the other begins",
            name_, slot.occupant->name_));
      slot.occupant->reshard();
    }
    slot.occupant = this;
    stream.wait(slot.free);
    buffer = slot.buffer;
  }
  int64_t at = 0;
  for (auto& g : groups_) {
    const int64_t n = g->needs_slot() ? g->full_elements() : 0;
    g->unshard(stream, n > 0 ? buffer.flat(at, at + n) : Tensor(), runtime_.staging_);
    at += n;
  }
  ready_ = stream.record();
  unsharded_ = true;
}

void Unit::wait() { runtime_.device_.compute().wait(ready_); }

void Unit::reshard() {
  if (!unsharded_ || slot_ < 0) return;
  auto& slot = runtime_.slots_[static_cast<size_t>(slot_)];
  // A buffer that was gathered into but never read is free once the gather is done: the gather stream knows.
  slot.free = runtime_.device_.compute().record();
  slot.occupant = nullptr;
  for (auto& g : groups_) g->reshard();
  unsharded_ = false;
}

void Unit::pre_forward(bool training) {
  unshard();
  runtime_.prefetch_forward(*this);
  wait();
  in_use_ = true;
  if (training) due_ = root_ ? 1 : due_ + 1;
  runtime_.record("forward", *this);
}

void Unit::post_forward() {
  in_use_ = false;
  const bool evaluating = due_ == 0;
  if (root_) {
    runtime_.order_ = runtime_.recording_;
    runtime_.recording_.clear();
    if (evaluating) reshard();
    return;
  }
  runtime_.ended_.push_back(this);
  if (reshard_after_forward_ || evaluating) reshard();
}

void Unit::pre_backward() {
  if (due_ == 0)
    throw InvalidArgument(
        fmt::format("backward of unit '{}' without a forward in training mode before it", name_));
  if (finished_)
    throw InvalidArgument(fmt::format(
        "backward of unit '{}' after the last microbatch's: its gradients are final. Step the optimizer "
        "first, or announce more microbatches with set_last_microbatch(false)",
        name_));
  unshard();
  runtime_.prefetch_backward(*this);
  wait();
  in_use_ = true;
  runtime_.record("backward", *this);
  Stream& compute = runtime_.device_.compute();
  Tensor buffer;
  if (grad_slot_ >= 0) {
    auto& slot = runtime_.grad_slots_[static_cast<size_t>(grad_slot_)];
    if (slot.occupant != nullptr)
      throw NotSupported(fmt::format(
          "unit '{}' needs the gradient buffer that unit '{}' is using: units of one nesting height "
          "may not be in backward at once",
          name_, slot.occupant->name_));
    slot.occupant = this;
    compute.wait(slot.free);
    buffer = slot.buffer;
  }
  int64_t at = 0;
  for (auto& g : groups_) {
    const int64_t n = g->needs_grad_slot() ? g->full_elements() : 0;
    g->open_grad(compute, n > 0 ? buffer.flat(at, at + n) : Tensor());
    at += n;
  }
}

void Unit::post_backward() {
  if (root_) runtime_.finish_backward();
  in_use_ = false;
  --due_;
  finish_gradients();
  reshard();
  if (root_ && finished_) runtime_.wait_gradients();
}

void Unit::finish_gradients() {
  runtime_.record("post", *this);
  const bool last = runtime_.last_microbatch_ && due_ == 0;
  Stream& compute = runtime_.device_.compute();
  Stream& stream = *runtime_.reduce_;
  stream.wait(compute.record());
  for (auto& g : groups_) {
    g->reduce(stream, last, runtime_.staging_);
    g->close_grad();
  }
  finished_ = last;
  runtime_.reduced_ = stream.record();
  if (grad_slot_ >= 0) {
    auto& slot = runtime_.grad_slots_[static_cast<size_t>(grad_slot_)];
    slot.free = runtime_.reduced_;
    slot.occupant = nullptr;
  }
  if (!runtime_.options_.overlap_reduce) compute.wait(runtime_.reduced_);
}

}  // namespace sherd
