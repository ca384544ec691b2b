#include <sherd/torch/recompute.h>

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <sherd/base/error.h>
#include <sherd/torch/detail/defaults.h>
#include <sherd/torch/detail/owed.h>
#include <sherd/torch/detail/written_tensors.h>
#include <sherd/torch/generator.h>

namespace sherd::torch::detail {
namespace {

namespace autograd = ::torch::autograd;

using TensorList = std::vector<at::Tensor>;

/// Autocast on CPUs and GPUs: enabled or not, and the dtype.
class Autocast {
 public:
  Autocast() {
    for (size_t i = 0; i < kKinds.size(); ++i)
      values_[i] = {at::autocast::is_autocast_enabled(kKinds[i]),
                    at::autocast::get_autocast_dtype(kKinds[i])};
  }
  void set() const {
    for (size_t i = 0; i < kKinds.size(); ++i) {
      at::autocast::set_autocast_enabled(kKinds[i], values_[i].on);
      at::autocast::set_autocast_dtype(kKinds[i], values_[i].dtype);
    }
  }

 private:
  static constexpr std::array<at::DeviceType, 2> kKinds = {at::kCPU, at::kCUDA};
  struct Value {
    bool on = false;
    at::ScalarType dtype = at::kFloat;
  };
  std::array<Value, kKinds.size()> values_;
};

class AutocastScope {
 public:
  explicit AutocastScope(const Autocast& now) { now.set(); }
  ~AutocastScope() { before_.set(); }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  Autocast before_;
};

/// Scope in which autocast keeps no casts of weights: the next step's forward would use one of the second
/// run.
class NoCachedCasts {
 public:
  NoCachedCasts() { at::autocast::set_autocast_cache_enabled(false); }
  ~NoCachedCasts() { at::autocast::set_autocast_cache_enabled(before_); }
  NoCachedCasts(const NoCachedCasts&) = delete;
  NoCachedCasts& operator=(const NoCachedCasts&) = delete;

 private:
  const bool before_ = at::autocast::is_autocast_cache_enabled();
};

at::Tensor state_of(const at::Generator& generator) {
  at::Generator g = generator;
  const std::lock_guard alone(g.mutex());
  return g.get_state();
}

void set_state(const at::Generator& generator, const at::Tensor& state) {
  at::Generator g = generator;
  const std::lock_guard alone(g.mutex());
  g.set_state(state);
}

/// The states of libtorch's generators of the GPUs of a function's arguments. A rank is the only user of its
/// GPU (detail/torch_cuda.cpp), so the generators' states can be set back for the second run. A copy, as used
/// on the CPU, cannot be passed to operations on a GPU.
class GpuStates {
 public:
  GpuStates() = default;
  explicit GpuStates(const TensorList& tensors) {
    for (const at::Tensor& t : tensors) {
      if (!t.is_cuda()) continue;
      const at::Generator generator = at::globalContext().defaultGenerator(t.device());
      const bool known =
          std::any_of(states_.begin(), states_.end(), [&](const auto& s) { return s.first == generator; });
      if (!known) states_.emplace_back(generator, state_of(generator));
    }
  }
  void set() const {
    for (const auto& [generator, state] : states_) set_state(generator, state);
  }
  /// Returns the present states of the same generators.
  GpuStates now() const {
    GpuStates now;
    for (const auto& [generator, state] : states_) now.states_.emplace_back(generator, state_of(generator));
    return now;
  }

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// Scope in which the generators have these states.
class GpuStatesScope {
 public:
  explicit GpuStatesScope(const GpuStates& then) : before_(then.now()) { then.set(); }
  ~GpuStatesScope() { before_.set(); }
  GpuStatesScope(const GpuStatesScope&) = delete;
  GpuStatesScope& operator=(const GpuStatesScope&) = delete;

 private:
  const GpuStates before_;
};

/// Data of the second run beside the inputs.
struct SecondRun final : ::torch::CustomClassHolder {
  std::function<TensorList(const TensorList&)> again;
  at::Generator generator;  // state before the first run
  GpuStates gpus;           // likewise
  Autocast autocast;
  WrittenTensors written;    // by the first run
  std::vector<bool> wanted;  // inputs that need a gradient
  OwedBackwards owed;
};

at::Generator copy_of(at::Generator generator) {
  const std::lock_guard alone(generator.mutex());
  return generator.clone();
}

constexpr const char* kSecondRun = "second run";

struct SherdRecompute : autograd::Function<SherdRecompute> {
  // `anchor` is a tensor that needs a gradient: backward runs this function even where only inner weights
  // need one.
  static autograd::variable_list forward(autograd::AutogradContext* context,
                                         const c10::intrusive_ptr<SecondRun>& second,
                                         const std::function<TensorList()>& first, at::TensorList inputs,
                                         const at::Tensor& /*anchor*/) {
    context->saved_data[kSecondRun] = c10::IValue::make_capsule(second);
    context->set_materialize_grads(false);
    std::vector<int64_t> versions;
    for (const at::Tensor& t : inputs) versions.push_back(t._version());
    // Threads share libtorch's generator, so numbers drawn by others meanwhile would shift the second run:
    // both runs draw from a copy, and the generator continues from the state after the first.
    at::Generator generator = generator_now();
    second->generator = copy_of(generator);
    second->gpus = GpuStates(inputs.vec());
    const at::Generator drawn = copy_of(second->generator);
    TensorList results;
    {
      const NoCachedCasts uncached;
      const ThreadGenerator own(drawn);
      const OwedBackwards::Run run(&second->owed, OwedBackwards::second_run());
      const WrittenTensors::FirstRun writes(second->written);
      results = first();
    }
    const at::Tensor state = drawn.get_state();
    {
      const std::lock_guard alone(generator.mutex());
      generator.set_state(state);
    }
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i]._version() != versions[i])
        throw InvalidArgument(
            fmt::format("sherd::torch::recompute: the function wrote in place to tensor {} of its arguments, "
                        "which its second run "
                        "would find changed; let it write to a copy",
                        i));
    context->save_for_backward(inputs.vec());
    return results;
  }

  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          autograd::variable_list gradients) {
    if (c10::GradMode::is_enabled())
      throw NotSupported(
          "backward with create_graph through sherd::torch::recompute(): the second run has no graph of its "
          "own; call the function without recompute()");
    const auto* const chosen = autograd::get_current_graph_task_exec_info();
    if (chosen != nullptr && !chosen->empty())
      throw NotSupported(
          "torch::autograd::grad(), or backward() of chosen inputs, through sherd::torch::recompute(): its "
          "second run would add to the gradients of all parameters; call the function without recompute()");
    const auto second =
        c10::static_intrusive_pointer_cast<SecondRun>(context->saved_data.at(kSecondRun).toCapsule());
    TensorList inputs = context->get_saved_variables();
    for (size_t i = 0; i < inputs.size(); ++i)
      inputs[i] = inputs[i].detach().set_requires_grad(second->wanted[i]);
    const at::AutoGradMode recording(true);
    TensorList results;
    {
      const NoCachedCasts uncached;
      const AutocastScope autocast(second->autocast);
      const ThreadGenerator own(copy_of(second->generator));
      const GpuStatesScope gpus(second->gpus);
      const OwedBackwards::Run run(nullptr, &second->owed);
      const WrittenTensors::SecondRun writes(second->written);
      results = second->again(inputs);
      second->owed.give_up();
    }
    if (results.size() != gradients.size())
      throw InvalidArgument(
          fmt::format("sherd::torch::recompute: the function returned {} tensors, and {} when it ran again; "
                      "it has to do the same "
                      "both times",
                      gradients.size(), results.size()));
    autograd::variable_list from, with;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!gradients[i].defined() || !results[i].requires_grad()) continue;
      from.push_back(results[i]);
      with.push_back(gradients[i]);
    }
    if (!from.empty()) autograd::backward(from, with);
    autograd::variable_list all(2);  // for the two functions
    for (const at::Tensor& t : inputs) all.push_back(t.requires_grad() ? t.grad() : at::Tensor());
    all.emplace_back();  // for the anchor
    return all;
  }
};

}  // namespace

TensorList run_twice(const TensorList& inputs, const std::function<TensorList()>& first,
                     std::function<TensorList(const TensorList&)> again) {
  auto second = c10::make_intrusive<SecondRun>();
  second->again = std::move(again);
  for (const at::Tensor& t : inputs) second->wanted.push_back(t.requires_grad());
  const at::Tensor anchor = at::empty({0}).requires_grad_();
  return SherdRecompute::apply(second, first, at::TensorList(inputs), anchor);
}

at::Tensor nothing_held() { return at::empty({0}); }

}  // namespace sherd::torch::detail
