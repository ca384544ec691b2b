#include <sherd/torch/local_shards.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sherd/fsdp/weights_change.h>
#include <sherd/kernels/copy/copy.h>
#include <sherd/optim/clip.h>
#include <sherd/torch/detail/attached.h>
#include <sherd/torch/detail/kept_state.h>
#include <sherd/torch/detail/model.h>
#include <sherd/torch/detail/tensor_memory.h>
#include <sherd/torch/detail/torch_device.h>
#include <sherd/torch/fully_shard.h>

namespace sherd::torch {
namespace {

// Returns a shape with the parameter's number of dimensions on every rank, for any part that a rank holds.
// Grouping by dim() is then the same on all ranks, and the same as for the parameters themselves.
std::vector<int64_t> shape_of_shard(const Parameter& parameter) {
  const ParamRange range = parameter.shard_range();
  std::vector<int64_t> shape(parameter.shape().begin(), parameter.shape().end());
  if (shape.size() < 2) return {range.size()};
  if (parameter.numel() == 0) return shape;
  const int64_t row = parameter.numel() / shape[0];
  if (range.empty() || (range.begin.value % row == 0 && range.size() % row == 0)) {
    shape[0] = range.size() / row;
  } else {
    std::fill(shape.begin(), shape.end(), 1);
    shape.back() = range.size();
  }
  return shape;
}

at::Tensor view_of_shard(const Tensor& memory, const Parameter& parameter,
                         const detail::TorchDevice& device) {
  return detail::view_of(memory, shape_of_shard(parameter), at::kFloat, device.place());
}

}  // namespace

struct LocalShards::Impl {
  ModuleBase& root;
  bool skip_non_finite;
  std::weak_ptr<ShardRuntime> runtime = runtime_of(root).weak_from_this();
  int64_t skipped = 0;
  std::shared_ptr<detail::TorchDevice> device = detail::TorchDevice::of(runtime_of(root).device());
  std::vector<detail::NamedShard> shards = {};
  std::optional<sherd::Optimizer> kept = {};

  /// Calls `update` while the shards have the gradients.
  void update_with_gradients(const std::function<void()>& update);
};

void LocalShards::Impl::update_with_gradients(const std::function<void()>& update) {
  const auto on_compute = device->on_compute();
  // Scope of the gradients: however the update ends, their buffers are the next step's.
  struct Gradients {
    std::vector<detail::NamedShard>& shards;
    std::vector<at::Tensor> views;
    ~Gradients() {
      for (auto& [parameter, values] : shards) values.mutable_grad() = at::Tensor();
      for (const at::Tensor& view : views)
        if (view.numel() > 0)
          detail::take_memory_away(
              *view.storage().unsafeGetStorageImpl(),
              "a gradient of sherd::torch::LocalShards, outside of the function that step() was given");
    }
  } gradients{shards, {}};
  for (auto& [parameter, values] : shards)
    if (!parameter.frozen())
      values.mutable_grad() =
          gradients.views.emplace_back(view_of_shard(parameter.grad_shard(), parameter, *device));
  update();
}

LocalShards::LocalShards(::torch::nn::Module& root, bool skip_non_finite)
    : impl_(new Impl{root_of(root), skip_non_finite}) {
  ModuleBase& model = impl_->root;
  detail::Model& owner = detail::model_of(root);
  for (const auto& [name, parameter] : model.named_parameters()) {
    if (!parameter.trainable()) continue;
    detail::require_f32_masters(parameter, "LocalShards");
    if (parameter.group().plan().grad_dtype != DType::f32)
      throw InvalidArgument(fmt::format(
          "sherd::torch::LocalShards: gradients of parameter '{}' are kept in {}; use grad_dtype f32, or "
          "update with sherd::Optimizer",
          parameter.name(), name_of(parameter.group().plan().grad_dtype)));
    impl_->shards.push_back(
        {parameter, view_of_shard(parameter.shard(), parameter, *impl_->device).requires_grad_(true)});
    owner.lend(impl_->shards.back().second,
               "a shard of sherd::torch::LocalShards, whose model is gone, and its memory with it");
  }
  owner.note_user_of_gradients();
}

LocalShards::~LocalShards() = default;

std::vector<at::Tensor> LocalShards::parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& [parameter, values] : impl_->shards) all.push_back(values);
  return all;
}

std::vector<std::pair<std::string, at::Tensor>> LocalShards::named_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& [parameter, values] : impl_->shards) all.emplace_back(parameter.name(), values);
  return all;
}

bool LocalShards::step(const std::function<void()>& update) {
  const auto runtime = impl_->runtime.lock();
  if (!runtime) throw InvalidArgument("LocalShards::step(): the model is gone");
  if (impl_->kept) {
    auto& state = dynamic_cast<detail::KeptState&>(impl_->kept->rule(detail::KeptState::kName));
    const detail::KeptState::Run run(state, [&] { impl_->update_with_gradients(update); });
    impl_->kept->step(0);  // the optimizers have their own learning rates
    return state.stepped();
  }
  runtime->require_gradients("LocalShards::step()");
  if (impl_->skip_non_finite && !runtime->skip().defined())
    clip_grad_norm(impl_->root, 0);  // computes the norm
  Stream& compute = runtime->device().compute();
  int64_t skip = 0;
  if (runtime->skip().defined()) ops::copy_to_host(compute, &skip, runtime->skip());
  WeightsChange change(*runtime);
  impl_->device->join();  // waits for the reductions and for readers of the weights
  if (skip == 0) {
    change.begin_update();
    impl_->update_with_gradients(update);
  }
  change.end();
  impl_->skipped += skip;
  return skip == 0;
}

int64_t LocalShards::skipped() const { return impl_->skipped + (impl_->kept ? impl_->kept->skipped() : 0); }

sherd::Optimizer& LocalShards::keep(std::vector<detail::KeptOptimizer> optimizers) {
  if (impl_->runtime.expired()) throw InvalidArgument("LocalShards::keep_state(): the model is gone");
  if (impl_->kept)
    throw InvalidArgument(
        "LocalShards::keep_state(): called twice; give all optimizers of the model in one call");
  const UpdateRuleFactory rule =
      detail::KeptState::factory(std::move(optimizers), impl_->shards, impl_->device);
  Routing routing;
  for (const auto& [parameter, values] : impl_->shards)
    routing.routes.push_back(
        {.name = parameter.name(), .param = parameter, .algorithm = detail::KeptState::kName});
  impl_->kept.emplace(impl_->root, routing,
                      OptimizerOptions{.skip_non_finite = impl_->skip_non_finite, .further = {rule}});
  return *impl_->kept;
}

}  // namespace sherd::torch
