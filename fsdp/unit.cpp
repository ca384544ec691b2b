#include <sherd/fsdp/unit.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <sherd/fsdp/runtime.h>
#include <sherd/kernels/ops/ops.h>

namespace sherd {

Unit::Unit(ShardRuntime& runtime, std::string name, int index, bool root)
    : runtime_(&runtime), name_(std::move(name)), index_(index), root_(root) {}

ShardRuntime& Unit::runtime() const {
  if (runtime_ == nullptr)
    throw InvalidArgument(fmt::format(
        "unit '{}': the root that it was sharded with is gone, and its weights with it; keep the root "
        "alive while parts of it are used, or wrap them again with fully_shard()",
        name_));
  return *runtime_;
}

void Unit::detach() {
  runtime_ = nullptr;
  unsharded_ = false;
  groups_.clear();
}

void Unit::sync() {
  ShardRuntime& runtime = this->runtime();
  if (!stale_) return;
  Stream& stream = *runtime.gather_;
  stream.wait(runtime.weights_ready_);
  for (auto& g : groups_) g->publish(stream, runtime.staging_);
  ready_ = stream.record();
  stale_ = false;
}

void Unit::unshard() {
  ShardRuntime& runtime = this->runtime();
  if (unsharded()) return;
  runtime.record("unshard", *this);
  Stream& stream = *runtime.gather_;
  sync();
  const Tensor buffer =
      slot_ >= 0 ? runtime.take_slot(runtime.slots_, slot_, slot_elements_, *this, stream) : Tensor();
  int64_t at = 0;
  for (auto& g : groups_) {
    const int64_t n = g->needs_slot() ? g->full_elements() : 0;
    g->unshard(stream, n > 0 ? buffer.flat(at, at + n) : Tensor(), runtime.staging_);
    at += n;
  }
  ready_ = stream.record();
  unsharded_ = true;
}

void Unit::wait() { runtime().device_.compute().wait(ready_); }

void Unit::reshard() {
  ShardRuntime& runtime = this->runtime();
  if (!unsharded_ || slot_ < 0) return;
  auto& slot = runtime.slots_[static_cast<size_t>(slot_)];
  slot.occupant = nullptr;
  for (auto& g : groups_) g->reshard();
  unsharded_ = false;
  // A buffer that was gathered into but never read is free once the gather is done: the gather stream knows.
  slot.free = runtime.device_.compute().record();
}

long Unit::open(bool backward) const {
  return std::count_if(uses_.begin(), uses_.end(), [&](const Use& u) { return u.backward == backward; });
}

void Unit::begin_use(const Use& use) {
  uses_.push_back(use);
  ++runtime_->open_;
  if (use.backward) ++runtime_->open_backwards_;
}

Unit::Use Unit::end_use() {
  const Use use = uses_.back();
  uses_.pop_back();
  --runtime_->open_;
  if (use.backward) --runtime_->open_backwards_;
  return use;
}

void Unit::require_use(bool backward, const char* verb) const {
  if (uses_.empty() || uses_.back().backward != backward)
    throw InvalidArgument(fmt::format("{}() of unit '{}' without its pre_{}() before it", verb, name_,
                                      backward ? "backward" : "forward"));
}

void Unit::require_others_ended(const char* verb) const {
  if (!root_ || uses_.size() != 1 || runtime_->open_ == 1) return;
  std::vector<std::string> names;
  for (auto& u : runtime_->units_)
    if (u.get() != this && !u->uses_.empty()) names.push_back(u->name_);
  throw InvalidArgument(
      fmt::format("{}() of the root while units are in use: '{}'; end each of their uses by post_forward(), "
                  "post_backward() or the cancel_ verb before the root's",
                  verb, fmt::join(names, "', '")));
}

void Unit::pre_forward(bool training) {
  ShardRuntime& runtime = this->runtime();
  if (training) runtime.require_whole_step(fmt::format("forward of unit '{}'", name_));
  const Use use{
      .backward = false, .training = training, .recomputes = runtime.open_backwards_ > 0, .due_before = due_};
  unshard();
  if (!use.recomputes) runtime.prefetch_forward(*this);
  wait();
  // The backward of the root's latest forward alone may come: what an abandoned one has left is not due.
  if (training && root_ && !use.recomputes)
    for (auto& u : runtime.units_) u->due_ = 0;
  if (training) due_ = root_ || use.recomputes ? std::max(due_, 1) : due_ + 1;
  begin_use(use);
  runtime.record(use.recomputes ? "recompute" : "forward", *this);
}

void Unit::post_forward() {
  ShardRuntime& runtime = this->runtime();
  require_use(false, "post_forward");
  require_others_ended("post_forward");
  const bool outermost = uses_.size() == 1, recomputes = uses_.back().recomputes;
  const bool evaluating = due_ == 0;
  const bool kept = !evaluating && (root_ || recomputes || !reshard_after_forward_);
  if (outermost && !kept) reshard();
  if (!recomputes) runtime.end_forward(*this);
  end_use();
  runtime.cancelled_.clear();
}

void Unit::cancel_forward() noexcept {
  if (runtime_ == nullptr || uses_.empty() || uses_.back().backward) return;
  const Use use = end_use();
  due_ = use.due_before;
  try {
    runtime_->note_cancelled(*this, use);
    if (uses_.empty()) reshard();
  } catch (...) {  // a stream that failed tells it again to whoever uses it next
  }
}

void Unit::pre_backward() {
  ShardRuntime& runtime = this->runtime();
  runtime.require_whole_step(fmt::format("backward of unit '{}'", name_));
  if (due_ == 0)
    throw InvalidArgument(
        fmt::format("backward of unit '{}' without a forward in training mode before it", name_));
  if (finished_)
    throw InvalidArgument(fmt::format(
        "backward of unit '{}' after the last microbatch's: its gradients are final. Step the optimizer "
        "first, or announce more microbatches with set_last_microbatch(false)",
        name_));
  unshard();
  runtime.prefetch_backward(*this);
  wait();
  const bool outermost = open(true) == 0;
  begin_use({.backward = true, .due_before = due_});
  runtime.record("backward", *this);
  if (!outermost) return;
  try {
    open_gradients();
  } catch (...) {
    cancel_backward();
    throw;
  }
}

void Unit::open_gradients() {
  Stream& compute = runtime_->device_.compute();
  const Tensor buffer = grad_slot_ >= 0 ? runtime_->take_slot(runtime_->grad_slots_, grad_slot_,
                                                              grad_slot_elements_, *this, compute)
                                        : Tensor();
  int64_t at = 0;
  for (auto& g : groups_) {
    const int64_t n = g->needs_grad_slot() ? g->full_elements() : 0;
    g->open_grad(n > 0 ? buffer.flat(at, at + n) : Tensor());
    at += n;
  }
}

void Unit::post_backward() {
  ShardRuntime& runtime = this->runtime();
  require_use(true, "post_backward");
  require_others_ended("post_backward");
  const bool outermost = open(true) == 1;
  if (outermost && root_) runtime.finish_backward();
  --due_;
  if (outermost) {
    finish_gradients();
    if (uses_.size() == 1) reshard();
    if (root_ && finished_) runtime.wait_gradients();
  }
  end_use();
  runtime.cancelled_.clear();
}

void Unit::cancel_backward() noexcept {
  if (runtime_ == nullptr || uses_.empty() || !uses_.back().backward) return;
  const Use use = end_use();
  try {
    runtime_->note_cancelled(*this, use);
    if (open(true) > 0) return;
    close_gradients(runtime_->device_.compute().record());
    if (uses_.empty()) reshard();
  } catch (...) {  // as above
  }
}

void Unit::finish_gradients() {
  runtime_->record("post", *this);
  const bool last = runtime_->last_microbatch_ && due_ == 0;
  Stream& compute = runtime_->device_.compute();
  Stream& stream = *runtime_->reduce_;
  for (auto& g : groups_) g->settle_grad(compute, last);
  stream.wait(compute.record());
  for (auto& g : groups_) g->reduce(stream, last, runtime_->staging_);
  finished_ = last;
  runtime_->reduced_ = stream.record();
  close_gradients(runtime_->reduced_);
  if (!runtime_->options_.overlap_reduce) compute.wait(runtime_->reduced_);
}

void Unit::close_gradients(const Event& free) {
  for (auto& g : groups_) g->close_grad();
  if (grad_slot_ < 0) return;
  auto& slot = runtime_->grad_slots_[static_cast<size_t>(grad_slot_)];
  if (slot.occupant != this) return;
  slot.occupant = nullptr;
  slot.free = free;
}

}  // namespace sherd
