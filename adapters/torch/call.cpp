#include <sherd/torch/call.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <sherd/comm/core/require_equal.h>
#include <sherd/torch/detail/attached.h>
#include <sherd/torch/detail/calls.h>
#include <sherd/torch/detail/owed.h>
#include <sherd/torch/unsharded.h>

namespace sherd::torch {
namespace detail {
namespace {

constexpr const char* kHowToDrop =
    "run it, or let go of the loss and of everything else that those forwards returned; evaluate without "
    "recording";

}  // namespace

Unit*& running_unit() {
  static thread_local Unit* unit = nullptr;
  return unit;
}

/// A forward of a unit, from unsharded weights to resharded ones.
class Forward {
 public:
  /// `recorded`: autograd may run a backward through it. `owed`: notes a backward for when the enclosing
  /// function runs again; may be null.
  Forward(std::shared_ptr<UnitUse> unit, bool recorded, OwedBackwards* owed)
      : unit_(std::move(unit)), model_(unit_->model()), owed_(owed) {
    Unit& u = unit_->unit();
    if (!model_) u.pre_forward(ForwardKind::evaluation);  // throws the reason
    if (model_->updating)
      throw InvalidArgument(
          fmt::format("a call of unit '{}', or an Unsharded of it, inside of the function that "
                      "update_weights() was given; call modules "
                      "before or after it",
                      u.name()));
    unit_->require_own_memory();
    const uint64_t step = model_->step();
    OwedBackwards* const second = OwedBackwards::second_run();
    // Only for an outermost forward, and for a root's that runs again later. No other forward begins with a
    // change of requires_grad.
    const bool outermost = second == nullptr && model_->forwards.empty() && model_->pass.expired();
    if (outermost && (recorded || (owed != nullptr && u.root()))) model_->follow_requires_grad();
    const bool noted = recorded || owed != nullptr;
    again_ = noted && second != nullptr && second->take(*unit_);
    if (again_)
      u.pre_forward(recorded ? ForwardKind::recomputed : ForwardKind::evaluation);
    else
      u.pre_forward(noted ? ForwardKind::recorded : ForwardKind::evaluation, kHowToDrop);
    try {
      unit_->bind();
      bound_ = true;
      model_->join();
      on_compute_ = model_->device().on_compute();
      if (!recorded) return;
      auto& around = model_->forwards;
      c10::intrusive_ptr<Call> parent;
      if (!around.empty()) {
        parent = c10::intrusive_ptr<Call>::reclaim_copy(around.back());
      } else if (const auto pass = model_->pass.lock()) {
        parent = pass->innermost();  // computed again in its backward
      }
      call_ = c10::make_intrusive<Call>(unit_, std::move(parent), step);
      around.push_back(call_.get());
    } catch (...) {
      cancel();
      throw;
    }
  }
  ~Forward() {
    if (open_) cancel();
  }
  Forward(const Forward&) = delete;
  Forward& operator=(const Forward&) = delete;

  const UnitUse& unit() const { return *unit_; }
  Model& model() const { return *model_; }
  const TorchDevice::OnCompute& on_compute() const { return *on_compute_; }
  /// Returns the call; null when it is not recorded.
  const c10::intrusive_ptr<Call>& call() const { return call_; }
  /// Ends the forward. `wanted`: a tensor of the result needs a gradient.
  void end(bool wanted) {
    release();
    unit_->unit().post_forward();
    open_ = false;
    if (owed_ != nullptr) owed_->add(unit_, model_->step(), again_);
    if (call_ == nullptr) return;
    if (again_) --unit_->due;  // counted when it was owed
    if (wanted) {
      call_->recorded();
    } else {
      unit_->unit().drop_backward();
    }
  }

 private:
  void release() {
    on_compute_.reset();
    if (std::exchange(bound_, false)) unit_->unbind();
    if (call_ != nullptr) std::erase(model_->forwards, call_.get());
  }
  void cancel() noexcept {
    release();
    open_ = false;
    unit_->unit().cancel_forward();
  }

  std::shared_ptr<UnitUse> unit_;
  std::shared_ptr<Model> model_;
  OwedBackwards* owed_;
  c10::intrusive_ptr<Call> call_;
  std::unique_ptr<TorchDevice::OnCompute> on_compute_;  // for libtorch's operations until the end
  bool bound_ = false, open_ = true;
  bool again_ = false;  // in the second run of a function, for an owed backward
};

bool is_recomputed(const Attached* attached) {
  return attached != nullptr && attached->recomputed && at::GradMode::is_enabled();
}

void refuse_recompute(const ::torch::nn::Module& module) {
  throw NotSupported(fmt::format(
      "sherd::torch::recompute_calls() of module '{}': a call of it has a function, an argument or "
      "a result that cannot be copied, and is to run twice; leave the module out",
      module.name()));
}

}  // namespace detail

namespace {

/// Returns the dtype that arguments are cast to; none, as in plain libtorch, where the whole model computes
/// in f32. In other models a unit in f32 casts the results of others to f32. Under autocast it does not,
/// since autocast chooses dtypes itself.
std::optional<DType> dtype_of_inputs(const detail::Forward& forward) {
  const std::optional<DType>& dtype = forward.unit().unit().precision().inputs;
  const detail::Model& model = forward.model();
  const bool kept = !model.mixed() || at::autocast::is_autocast_enabled(model.device().place().type());
  return dtype == DType::f32 && kept ? std::nullopt : dtype;
}

void cast(const std::vector<at::Tensor*>& tensors, const std::optional<DType>& dtype) {
  if (!dtype) return;
  const at::ScalarType to = detail::scalar_type_of(*dtype);
  for (at::Tensor* t : tensors)
    if (t->scalar_type() == at::kFloat || t->scalar_type() == at::kBFloat16) *t = t->to(to);
}

}  // namespace

struct CallScope::Impl {
  detail::Forward forward;
  bool wanted = false;
  // Autocast caches its casts of weights between calls. This call would use a cast that an earlier call
  // recorded, and its backward does not include it. All casts of a model's weights would also exist at once.
  const bool cached = at::autocast::is_autocast_cache_enabled();
  Unit* const around = std::exchange(detail::running_unit(), &forward.unit().unit());
};

CallScope::CallScope(const ::torch::nn::Module& module, const detail::Attached* attached) {
  const bool recorded = at::GradMode::is_enabled();
  if (attached != nullptr && attached->noted && recorded)
    throw InvalidArgument(
        fmt::format("a call of module '{}', which wrap() has noted as a unit, but fully_shard() (or "
                    "data_parallel()) of the root of its tree "
                    "was not called, so every rank would train a model of its own; call it once, of the "
                    "root, before the first forward "
                    "(torch::NoGradGuard for an evaluation before)",
                    module.name()));
  if (attached == nullptr || !attached->unit) return;
  if (recorded && attached->model) attached->model->require_whole(module);
  detail::OwedBackwards* const owed = recorded ? nullptr : detail::OwedBackwards::first_run();
  impl_.reset(new Impl{detail::Forward(attached->unit, recorded, owed)});
  at::autocast::set_autocast_cache_enabled(false);
}

CallScope::~CallScope() {
  if (!impl_) return;
  at::autocast::set_autocast_cache_enabled(impl_->cached);
  detail::running_unit() = impl_->around;
}

void CallScope::inputs(const std::vector<at::Tensor*>& tensors) {
  if (!impl_) return;
  for (const at::Tensor* t : tensors) impl_->forward.on_compute().takes(*t);
  if (const auto& call = impl_->forward.call()) {
    call->note_arguments(tensors);
    detail::mark_inputs(call, tensors);
  }
  cast(tensors, dtype_of_inputs(impl_->forward));
}

void CallScope::outputs(const std::vector<at::Tensor*>& tensors) {
  if (!impl_) return;
  cast(tensors, impl_->forward.unit().unit().precision().outputs);
  for (const at::Tensor* t : tensors) impl_->forward.on_compute().gives(*t);
  if (impl_->forward.call() == nullptr) return;
  impl_->wanted =
      std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor* t) { return t->requires_grad(); });
  detail::mark_outputs(impl_->forward.call(), tensors);
}

void CallScope::end() {
  if (!impl_) return;
  impl_->forward.unit().require_unwritten("a call");
  impl_->forward.end(impl_->wanted);
}

struct Unsharded::Impl {
  std::vector<std::unique_ptr<detail::Forward>> open;
  at::NoGradGuard no_grad;
  const int exceptions = std::uncaught_exceptions();

  /// Returns each parameter that was written on some rank, and the rank. Collective.
  std::string written() const {
    std::vector<uint64_t> mine;
    std::vector<std::string> names;
    for (const auto& f : open) {
      const std::vector<size_t> found = f->unit().written();
      for (size_t w = 0; w < f->unit().weights().size(); ++w) {
        mine.push_back(std::find(found.begin(), found.end(), w) == found.end() ? 0 : 1);
        names.push_back(f->unit().weights()[w].parameter.name());
      }
    }
    Communicator& world = *open.front()->model().runtime().mesh().world();
    const Serving serving(world, Purpose("what was written in an Unsharded"));
    const std::vector<uint64_t> all = gather_values(world, world.device().compute(), mine);
    std::vector<std::string> wrong;
    for (size_t i = 0; i < names.size(); ++i) {
      std::vector<int> ranks;
      for (int r = 0; r < world.size(); ++r)
        if (all[static_cast<size_t>(r) * names.size() + i] != 0) ranks.push_back(r);
      if (!ranks.empty()) wrong.push_back(fmt::format("'{}' (ranks {})", names[i], fmt::join(ranks, ", ")));
    }
    return fmt::format("{}", fmt::join(wrong, ", "));
  }
  void close() {
    while (!open.empty()) {
      try {
        open.back()->end(false);
      } catch (...) {  // a failed stream rethrows at its next use
      }
      open.pop_back();
    }
  }
};

Unsharded::Unsharded(::torch::nn::Module& module) : impl_(std::make_unique<Impl>()) {
  const auto open = [&](const ::torch::nn::Module& m) {
    const detail::Attached* attached = detail::attached_to(m);
    if (attached == nullptr || !attached->unit) return false;
    impl_->open.push_back(std::make_unique<detail::Forward>(attached->unit, false, nullptr));
    return true;
  };
  if (!open(module))
    throw InvalidArgument(
        "sherd::torch::Unsharded of a module that is not wrapped; take the wrapped module that it lies in, "
        "or the root");
  for (const auto& m : module.modules(/*include_self=*/false)) open(*m);
}

void Unsharded::end() {
  if (impl_ == nullptr) return;
  const std::unique_ptr<Impl> impl = std::move(impl_);
  std::string written;
  try {
    written = impl->written();
  } catch (...) {
    impl->close();
    throw;
  }
  impl->close();
  if (!written.empty())
    throw InvalidArgument(
        fmt::format("sherd::torch::Unsharded: parameters were written in place in it: {}: {}", written,
                    detail::kWriteWeights));
}

Unsharded::~Unsharded() noexcept(false) {
  if (impl_ == nullptr) return;
  if (std::uncaught_exceptions() == impl_->exceptions) {
    end();
  } else {  // an exception reports the failure itself, and other ranks may have none
    impl_->close();
  }
}

}  // namespace sherd::torch
