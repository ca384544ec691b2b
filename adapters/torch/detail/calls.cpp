#include <sherd/torch/detail/calls.h>

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>

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

// Passes gradients unchanged; the call itself, the first argument, has none.
autograd::variable_list passed(autograd::variable_list gradients) {
  gradients.insert(gradients.begin(), at::Tensor());
  return gradients;
}

// Marks gradients that leave a call while autograd records: a later backward through them enters the call
// again.
void mark_gradients(const c10::intrusive_ptr<Call>& call, autograd::variable_list& gradients) {
  std::vector<at::Tensor*> defined;
  for (at::Tensor& g : gradients)
    if (g.defined()) defined.push_back(&g);
  mark_outputs(call, defined);
}

struct SherdUnitInputs : autograd::Function<SherdUnitInputs> {
  static autograd::variable_list forward(autograd::AutogradContext* context,
                                         const c10::intrusive_ptr<Call>& call, at::TensorList inputs) {
    noted(context, call);
    return inputs.vec();
  }
  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          autograd::variable_list gradients) {
    const c10::intrusive_ptr<Call> call = call_of(context);
    call->leave();
    if (c10::GradMode::is_enabled()) mark_gradients(call, gradients);
    return passed(std::move(gradients));
  }
};

struct SherdUnitOutputs : autograd::Function<SherdUnitOutputs> {
  // Detaches results. Returned as they are, they would be views that must not be written in place. Views are
  // right for tensors that share memory with an argument or another result. A write to one would change the
  // other, and autograd could not detect it for a detached tensor.
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

// Marks the gradient of a parameter that autograd returns together with its graph.
class GradientReturned final : public autograd::FunctionPreHook {
 public:
  explicit GradientReturned(std::weak_ptr<UnitUse> unit) : unit_(std::move(unit)) {}
  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    autograd::variable_list all = gradients;
    const auto unit = unit_.lock();
    const auto model = unit && c10::GradMode::is_enabled() ? unit->model() : nullptr;
    const auto reading = model ? model->reading.lock() : nullptr;
    if (!reading || !all.front().defined()) return all;
    for (const auto& call : reading->calls_of(*unit)) mark_outputs(call, {&all.front()});
    return all;
  }

 private:
  std::weak_ptr<UnitUse> unit_;
};

void mark_parameter_gradients(Model& model) {
  if (std::exchange(model.marks_gradients, true)) return;
  for (const auto& unit : model.units())
    for (const UnitUse::Weight& w : unit->weights())
      autograd::impl::add_hook(w.tensor, std::make_unique<GradientReturned>(unit));
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
  } catch (...) {  // the model no longer exists
  }
}

void Call::recorded() {
  state_ = State::due;
  ++unit_->due;
}

void Call::enter() {
  if (state_ == State::backward) return;  // entered for an inner call, or by another of its results
  const std::string& name = unit_->unit().name();
  const auto model = unit_->model();
  if (!model) unit_->unit().pre_backward();  // throws the reason
  const auto require_this_step = [&] {
    if (model->step() != step_)
      throw InvalidArgument(
          fmt::format("backward through a call of unit '{}' from before the latest optimizer step, "
                      "update_weights() or reset_step(); run "
                      "the forward again",
                      name));
  };
  if (const auto reading = Reading::of(model)) {
    require_this_step();
    return reading->enter(c10::intrusive_ptr<Call>::reclaim_copy(this));
  }
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
        "backward() with create_graph through unit '{}': gradients of its parameters are summed into sherd's "
        "buffers, which have no graph; take gradients by torch::autograd::grad() with create_graph, and call "
        "backward() of what is computed from them",
        name));
  require_this_step();
  // The enclosing call has weights of its own to unshard, and must end later.
  if (parent_ && parent_->state_ == State::due) parent_->enter();
  Pass::of(model)->enter(c10::intrusive_ptr<Call>::reclaim_copy(this));
}

void Call::leave() {
  const auto model = unit_->model();
  if (const auto reading = model ? Reading::of(model) : nullptr) return reading->leave(*this);
  if (state_ != State::backward) return;  // backward reached none of its results
  if (const auto pass = model ? model->pass.lock() : nullptr) pass->leave(*this);
}

bool Call::inside(const Call& other) const {
  const Call* around = parent_.get();
  while (around != nullptr && around != &other) around = around->parent_.get();
  return around != nullptr;
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
  // Gradients of an earlier call of the same unit stay open, and this call adds to them.
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

void Pass::leave(Call& call) {
  const bool more = call.unit().due > 1;
  const bool all = !more && call.unit().unit().root();
  // Inner calls have ended too, also those without a report of their end: this call is complete.
  for (size_t i = open_.size(); i-- > 0;) {
    Call& other = *open_[i];
    if (&other == &call || !(all || other.inside(call))) continue;
    if (all || other.unit().due <= 1) {
      close(i, false);
    } else {
      other.state_ = Call::State::left;
    }
  }
  if (more) {
    // The root's stays open. Suspending it would require its inner units to have ended, and further calls
    // keep them open.
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
  } catch (...) {  // the device has failed; every later call on it reports that
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

Reading::Reading(std::shared_ptr<Model> model, int task) : model_(std::move(model)), task_(task) {
  if (c10::GradMode::is_enabled()) mark_parameter_gradients(*model_);
}

std::shared_ptr<Reading> Reading::of(const std::shared_ptr<Model>& model) {
  const int task = autograd::get_current_graph_task_id();
  if (auto running = model->reading.lock(); running && running->task_ == task) return running;
  const auto* const chosen = autograd::get_current_graph_task_exec_info();
  if (chosen == nullptr || chosen->empty()) return nullptr;  // backward() into all leaves
  for (const auto& unit : model->units())
    for (const UnitUse::Weight& w : unit->weights()) {
      const auto adds = chosen->find(autograd::impl::try_get_grad_accumulator(w.tensor).get());
      if (adds != chosen->end() && adds->second.needed_) return nullptr;
    }
  auto reading = std::make_shared<Reading>(model, task);
  reading->around_ = std::exchange(model->reading, reading);
  autograd::Engine::get_default_engine().queue_callback([reading] { reading->finish(); });
  return reading;
}

void Reading::enter(const c10::intrusive_ptr<Call>& call) {
  if (any_open([&](const Call& other) { return &other == call.get(); })) return;
  // The weights of a running forward are unsharded.
  if (call->parent_ && call->parent_->state_ != Call::State::forward) enter(call->parent_);
  UnitUse& unit = call->unit();
  unit.require_own_memory();
  unit.unit().pre_forward(ForwardKind::recomputed);  // outside of the order for prefetching forwards
  entries_.push_back({call});
  unit.bind();
  model_->join();
  model_->device().after_compute();
}

void Reading::leave(const Call& call) {
  for (size_t i = entries_.size(); i-- > 0;)
    if (entries_[i].open && entries_[i].call->inside(call)) close(i);
  // The root's last use ends after those of all units.
  const bool root = call.unit().unit().root();
  if (root && any_open([&](const Call& other) { return &other != &call; })) return;
  for (size_t i = entries_.size(); i-- > 0;)
    if (entries_[i].open && entries_[i].call.get() == &call) close(i);
}

bool Reading::any_open(const std::function<bool(const Call&)>& of) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.open && of(*e.call); });
}

void Reading::close(size_t at) {
  UnitUse& unit = entries_[at].call->unit();
  entries_[at].open = false;
  unit.unbind();
  try {
    unit.require_unwritten("the backward");
    model_->device().before_compute();
    unit.unit().post_forward();
  } catch (...) {
    unit.unit().cancel_forward();
    throw;
  }
}

void Reading::finish() {
  for (const bool root : {false, true})
    for (size_t i = entries_.size(); i-- > 0;)
      if (entries_[i].open && entries_[i].call->unit().unit().root() == root) close(i);
  model_->reading = around_;
}

std::vector<c10::intrusive_ptr<Call>> Reading::calls_of(const UnitUse& unit) const {
  std::vector<c10::intrusive_ptr<Call>> all;
  for (const Entry& e : entries_)
    if (&e.call->unit() == &unit) all.push_back(e.call);
  return all;
}

// An exception left the calls that are still open here.
Reading::~Reading() {
  for (size_t i = entries_.size(); i-- > 0;) {
    if (!entries_[i].open) continue;
    UnitUse& unit = entries_[i].call->unit();
    unit.unbind();
    unit.unit().cancel_forward();
  }
}

}  // namespace sherd::torch::detail
