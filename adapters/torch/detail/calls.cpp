#include <sherd/torch/detail/calls.h>

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <utility>

namespace sherd::torch::detail {
namespace {

namespace autograd = ::torch::autograd;

constexpr const char* kCall = "call";

c10::intrusive_ptr<Call> call_of(autograd::AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Call>(context->saved_data.at(kCall).toCapsule());
}

autograd::variable_list noted(autograd::AutogradContext* context, const c10::intrusive_ptr<Call>& call) {
  context->saved_data[kCall] = c10::IValue::make_capsule(call);
  context->set_materialize_grads(false);
  return {};
}

// Gradients pass unchanged; the call itself is the first argument, and has none.
autograd::variable_list passed(autograd::variable_list gradients) {
  gradients.insert(gradients.begin(), at::Tensor());
  return gradients;
}

struct SherdUnitInputs : autograd::Function<SherdUnitInputs> {
  static autograd::variable_list forward(autograd::AutogradContext* context,
                                         const c10::intrusive_ptr<Call>& call, at::TensorList inputs) {
    noted(context, call);
    return inputs.vec();
  }
  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          autograd::variable_list gradients) {
    call_of(context)->leave();
    return passed(std::move(gradients));
  }
};

struct SherdUnitOutputs : autograd::Function<SherdUnitOutputs> {
  // Not the tensors themselves: these would come out as views that must not be written in place. That is
  // right for tensors that share memory with an argument or another result: a write to one would change the
  // other, which autograd could not detect for a detached tensor.
  static autograd::variable_list forward(autograd::AutogradContext* context,
                                         const c10::intrusive_ptr<Call>& call, at::TensorList outputs) {
    noted(context, call);
    autograd::variable_list same;
    for (const at::Tensor& t : outputs) same.push_back(call->shares_memory(t, outputs) ? t : t.detach());
    return same;
  }
  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          autograd::variable_list gradients) {
    call_of(context)->enter();
    return passed(std::move(gradients));
  }
};

template <class Function>
void mark(const c10::intrusive_ptr<Call>& call, const std::vector<at::Tensor*>& tensors) {
  std::vector<at::Tensor> wanted;
  for (const at::Tensor* t : tensors)
    if (t->requires_grad()) wanted.push_back(*t);
  if (wanted.empty()) return;
  const autograd::variable_list marked = Function::apply(call, at::TensorList(wanted));
  size_t i = 0;
  for (at::Tensor* t : tensors)
    if (t->requires_grad()) *t = marked[i++];
}

}  // namespace

void mark_inputs(const c10::intrusive_ptr<Call>& call, const std::vector<at::Tensor*>& tensors) {
  mark<SherdUnitInputs>(call, tensors);
}
void mark_outputs(const c10::intrusive_ptr<Call>& call, const std::vector<at::Tensor*>& tensors) {
  mark<SherdUnitOutputs>(call, tensors);
}

Call::Call(std::shared_ptr<UnitUse> unit, c10::intrusive_ptr<Call> parent, uint64_t step)
    : unit_(std::move(unit)), parent_(std::move(parent)), step_(step) {}

Call::~Call() {
  if (state_ == State::due) give_up();
}

void Call::note_arguments(const std::vector<at::Tensor*>& tensors) {
  for (const at::Tensor* t : tensors)
    if (t->has_storage()) arguments_.insert(t->storage().unsafeGetStorageImpl());
}

bool Call::shares_memory(const at::Tensor& result, at::TensorList results) const {
  if (!result.has_storage()) return false;
  const c10::StorageImpl* const memory = result.storage().unsafeGetStorageImpl();
  return arguments_.contains(memory) ||
         std::count_if(results.begin(), results.end(), [&](const at::Tensor& other) {
           return other.has_storage() && other.storage().unsafeGetStorageImpl() == memory;
         }) > 1;
}

void Call::give_up() noexcept {
  state_ = State::done;
  try {
    const auto model = unit_->model();
    if (!model || model->step() != step_) return;
    --unit_->due;
    unit_->unit().drop_backward();
  } catch (...) {  // the model is gone
  }
}

void Call::recorded() {
  state_ = State::due;
  ++unit_->due;
}

void Call::enter() {
  if (state_ == State::backward) return;  // for a call inside of it, or by another of its results
  const std::string& name = unit_->unit().name();
  if (state_ == State::forward)
    throw InvalidArgument(
        fmt::format("backward through a call of unit '{}' whose forward has not ended", name));
  if (state_ != State::due)
    throw InvalidArgument(
        fmt::format("a second backward through a call of unit '{}': its gradients are reduced already; add "
                    "the objectives up and run "
                    "one backward, or run the forward again",
                    name));
  if (c10::GradMode::is_enabled())
    throw NotSupported(fmt::format(
        "backward with create_graph through unit '{}': gradients of gradients of sharded parameters", name));
  const auto model = unit_->model();
  if (!model) unit_->unit().pre_backward();  // says what is wrong
  if (model->step() != step_)
    throw InvalidArgument(
        fmt::format("backward through a call of unit '{}' from before the latest optimizer step, "
                    "update_weights() or reset_step(); run "
                    "the forward again",
                    name));
  // The call around this one has weights of its own to gather, and is to end after it.
  if (parent_ && parent_->state_ == State::due) parent_->enter();
  Pass::of(model)->enter(c10::intrusive_ptr<Call>::reclaim_copy(this));
}

void Call::leave() {
  if (state_ != State::backward) return;  // nothing of it was reached by way of its results
  const auto model = unit_->model();
  if (const auto pass = model ? model->pass.lock() : nullptr) pass->leave(*this);
}

std::shared_ptr<Pass> Pass::of(const std::shared_ptr<Model>& model) {
  if (auto running = model->pass.lock()) return running;
  auto pass = std::make_shared<Pass>(model);
  model->pass = pass;
  autograd::Engine::get_default_engine().queue_callback([pass] { pass->finish(); });
  return pass;
}

void Pass::enter(c10::intrusive_ptr<Call> call) {
  UnitUse& unit = call->unit();
  // The gradients of an earlier call of the same unit stay open, and this one adds to them.
  for (size_t i = open_.size(); i-- > 0;)
    if (&open_[i]->unit() == &unit && open_[i]->state_ == Call::State::left) close(i, true);
  unit.require_own_memory();
  unit.require_same_requires_grad();
  unit.unit().pre_backward();
  call->state_ = Call::State::backward;
  ++unit.backwards;
  open_.push_back(std::move(call));
  unit.bind();
  model_->join();
  model_->device().after_compute();
}

bool Pass::inside(const Call& call, const Call& other) {
  const Call* around = call.parent_.get();
  while (around != nullptr && around != &other) around = around->parent_.get();
  return around != nullptr;
}

void Pass::leave(Call& call) {
  const bool more = call.unit().due > 1;
  const bool all = !more && call.unit().unit().root();
  // Calls inside have ended, too, also those without a report of their end: this call is complete.
  for (size_t i = open_.size(); i-- > 0;) {
    Call& other = *open_[i];
    if (&other == &call || !(all || inside(other, call))) continue;
    if (all || other.unit().due <= 1) {
      close(i, false);
    } else {
      other.state_ = Call::State::left;
    }
  }
  if (more) {
    // The root's stays open: suspending it would need the units inside of it, which further calls keep open, to have ended.
    if (!call.unit().unit().root()) call.state_ = Call::State::left;
    return;
  }
  for (size_t i = open_.size(); i-- > 0;)
    if (open_[i].get() == &call) return close(i, false);
}

void Pass::close(size_t at, bool more) {
  const c10::intrusive_ptr<Call> call = open_[at];
  open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(at));
  UnitUse& unit = call->unit();
  call->state_ = Call::State::done;
  --unit.due;
  --unit.backwards;
  unit.unbind();
  try {
    unit.require_unwritten("the backward");
    model_->device().before_compute();
    unit.unit().post_backward(!more);
  } catch (...) {
    unit.unit().cancel_backward();
    throw;
  }
}

void Pass::finish() {
  while (!open_.empty()) close(open_.size() - 1, false);
  finished_ = true;
  model_->pass.reset();
}

Pass::~Pass() {
  if (finished_) return;
  try {
    model_->device().before_compute();
  } catch (...) {  // the device has failed, which every later call on it says again
  }
  for (; !open_.empty(); open_.pop_back()) {
    Call& call = *open_.back();
    call.state_ = Call::State::done;
    --call.unit().backwards;
    call.unit().unbind();
    call.unit().unit().cancel_backward();
  }
  model_->root_unit().unit().break_step();
}

}  // namespace sherd::torch::detail
