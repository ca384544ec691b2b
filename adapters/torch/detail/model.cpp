#include <sherd/torch/detail/model.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <ATen/ATen.h>
#include <sherd/comm/core/require_equal.h>
#include <sherd/fsdp/weights_change.h>
#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/random/random.h>
#include <sherd/torch/detail/attached.h>
#include <sherd/torch/detail/tensor_memory.h>

namespace sherd::torch::detail {
namespace {

namespace autograd = ::torch::autograd;

// Receives every gradient that autograd leaves in the grad() of a parameter.
class GradientArrived final : public autograd::PostAccumulateGradHook {
 public:
  GradientArrived(std::weak_ptr<UnitUse> unit, size_t weight, std::unique_ptr<PostAccumulateGradHook> before)
      : unit_(std::move(unit)), weight_(weight), before_(std::move(before)) {}
  void operator()(const autograd::Variable& tensor) override {
    if (before_) (*before_)(tensor);
    if (const auto unit = unit_.lock()) unit->take_gradient(weight_);
  }
  /// Returns the unit; null after the root's destruction.
  std::shared_ptr<UnitUse> unit() const {
    const auto unit = unit_.lock();
    return unit && unit->unit().attached() ? unit : nullptr;
  }
  /// Takes the program's own hook, out of a hook of a destroyed tree; null without one.
  std::unique_ptr<PostAccumulateGradHook> take_before() { return std::move(before_); }

 private:
  std::weak_ptr<UnitUse> unit_;
  size_t weight_;
  std::unique_ptr<PostAccumulateGradHook> before_;  // the program's own: a tensor has room for one hook
};

std::string_view bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const char*>(contiguous.const_data_ptr()), contiguous.nbytes()};
}

// Returns libtorch's version counter, which every write in place to the tensor or a view of it increments.
uint64_t version_of(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

}  // namespace

void to_shard(Stream& compute, const Parameter& parameter, const at::Tensor& tensor) {
  const ParamRange range = parameter.shard_range();
  if (range.empty()) return;
  const at::Tensor values = on_host(tensor);
  const Tensor own = parameter.shard();
  const Tensor whole = own.dtype() == DType::f32 ? own
                                                 : Tensor::empty(compute.device(), {range.size()}, DType::f32,
                                                                 MemoryClass::scratch, "fp32 weights");
  ops::copy_from_host(compute, whole, values.const_data_ptr<float>() + range.begin.value, whole.nbytes());
  if (whole.raw() == own.raw()) return;
  ops::write_weights(compute, own, parameter.shard_low(), whole);
}

void require_f32_masters(const Parameter& parameter, const char* function) {
  const GroupPlan& plan = parameter.group().plan();
  if (plan.master == Master::f32 && plan.master_place == Place::device) return;
  throw InvalidArgument(fmt::format(
      "sherd::torch::{}: shards of parameter '{}' are not fp32 tensors of the device (master {}, on the "
      "{}); use master f32 on the device, or update with sherd::Optimizer",
      function, parameter.name(), name_of(plan.master), name_of(plan.master_place)));
}

std::shared_ptr<const UnitUse> unit_of_parameter(const at::Tensor& parameter) {
  // Tensors without autograd metadata have no hooks.
  if (autograd::impl::get_autograd_meta(parameter) == nullptr) return nullptr;
  const auto* hook = dynamic_cast<GradientArrived*>(autograd::impl::post_acc_grad_hooks(parameter).get());
  return hook == nullptr ? nullptr : hook->unit();
}

UnitUse::~UnitUse() {
  for (Weight& w : weights_) set_address(w, nullptr);
}

void UnitUse::add(const Parameter& parameter, const at::Tensor& tensor) {
  const std::string name = parameter.name();
  weights_.push_back(
      {parameter, tensor, c10::Storage(),
       fmt::format("parameter '{}' is sharded by sherd: its values are there inside calls of the module "
                   "of unit '{}' (module(x) by its holder, not module->forward(x); Sharded<M>; "
                   "sherd::torch::call()), or while an "
                   "Unsharded of it lives. What moves or converts a module (Module::to()) comes before "
                   "fully_shard()",
                   name, unit_->name())});
  const at::ScalarType type = scalar_type_of(parameter.group().plan().dtype);
  const at::NoGradGuard no_grad;
  tensor.mutable_grad() = at::Tensor();
  become(tensor, without_memory(tensor.sizes(), type, device_->place()));
  weights_.back().memory = tensor.storage();
  set_address(weights_.back(), nullptr);
}

void UnitUse::set_address(Weight& weight, void* address) {
  c10::StorageImpl& storage = *weight.memory.unsafeGetStorageImpl();
  // An empty parameter has no memory at any time, and no values to read.
  const bool readable = address != nullptr || weight.tensor.numel() == 0;
  if (readable) allow_reading(storage);
  storage.set_data_ptr_noswap(c10::DataPtr(address, device_->place()));
  if (!readable) {
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(weight.absent);
  }
}

void UnitUse::require_own_memory() const {
  for (const Weight& w : weights_)
    if (w.tensor.storage().unsafeGetStorageImpl() != w.memory.unsafeGetStorageImpl())
      throw InvalidArgument(
          fmt::format("parameter '{}' of unit '{}' has other memory than sherd gave it, by set_data() or "
                      "torch::load(), say: what is in "
                      "there would be lost. Load values before fully_shard(), or by sherd::import_weights() "
                      "or sherd::resume()",
                      w.parameter.name(), unit_->name()));
}

void UnitUse::root_is_gone() {
  for (Weight& w : weights_) {
    w.absent = fmt::format(
        "parameter '{}' of a model that was sharded by sherd, whose root is gone, and its values with it",
        w.parameter.name());
    set_address(w, nullptr);
  }
}

void UnitUse::bind() {
  if (bound_++ > 0) return;
  for (Weight& w : weights_) {
    set_address(w, w.parameter.data().raw());
    w.version = version_of(w.tensor);
  }
}

std::vector<size_t> UnitUse::written() const {
  std::vector<size_t> found;
  for (size_t w = 0; w < weights_.size(); ++w)
    if (version_of(weights_[w].tensor) != weights_[w].version ||
        weights_[w].tensor.storage().unsafeGetStorageImpl() != weights_[w].memory.unsafeGetStorageImpl())
      found.push_back(w);
  return found;
}

void UnitUse::require_unwritten(const char* where) const {
  std::vector<std::string> names;
  for (const size_t w : written()) names.push_back(weights_[w].parameter.name());
  if (!names.empty())
    throw InvalidArgument(fmt::format("parameter(s) '{}' were written in place in {} of unit '{}': {}",
                                      fmt::join(names, "', '"), where, unit_->name(), kWriteWeights));
}

void UnitUse::require_same_requires_grad() const {
  for (const Weight& w : weights_)
    if (!w.parameter.frozen() && !w.tensor.requires_grad())
      throw InvalidArgument(
          fmt::format("requires_grad of parameter '{}' of unit '{}' was turned off between a forward and its "
                      "backward: switch it between "
                      "steps, before the forward",
                      w.parameter.name(), unit_->name()));
}

void UnitUse::unbind() noexcept {
  if (--bound_ > 0) return;
  for (Weight& w : weights_) set_address(w, nullptr);
}

void UnitUse::take_gradient(size_t w) {
  Weight& weight = weights_[w];
  const at::Tensor arrived = std::exchange(weight.tensor.mutable_grad(), at::Tensor());
  if (!arrived.defined()) return;
  if (backwards == 0)
    throw InvalidArgument(fmt::format(
        "a gradient of parameter '{}' came outside of the backward of unit '{}': the parameter was used "
        "outside of a "
        "call of that module, or a tensor left the call otherwise than in its result; put such uses into "
        "sherd::torch::call(), and return every tensor that leads to a gradient",
        weight.parameter.name(), unit_->name()));
  if (const auto model = model_.lock()) model->note_gradients();
  const at::NoGradGuard no_grad;
  const GradTarget target = weight.parameter.grad_for_overwrite();
  // On a GPU the engine accumulates in a stream of its choice: that of the parameter's first use in this
  // graph. This is the compute stream unless the program used another one in the call. The buffer is used in
  // the order of the compute stream, after the engine's.
  const auto compute = device_->on_compute();
  compute->takes(arrived);
  const at::Tensor sum = view_of(target.grad, weight.tensor.sizes(), at::kFloat, device_->place());
  const at::Tensor dense = arrived.is_sparse() ? arrived.to_dense() : arrived;
  // The first gradient is copied, not added to zeros: it keeps its bits, and less memory is touched.
  if (target.beta == 0) {
    sum.copy_(dense);
  } else {
    sum.add_(dense);
  }
}

// Tensors that the program still holds throw on use from now on: their memory ended with sherd's model.
Model::~Model() {
  for (const auto& unit : units_) unit->root_is_gone();
  for (const Lent& lent : lent_)
    if (const auto storage = lent.memory.lock()) take_memory_away(*storage, lent.gone);
}

void Model::follow_requires_grad() {
  uint64_t digest = 0;
  std::vector<std::string> without_memory;
  std::vector<Parameter> changed[2];  // thawed, frozen
  for (const auto& [parameter, tensor] : description_.parameters()) {
    const bool frozen = !tensor.requires_grad();
    digest = hash64(digest, frozen ? "-" : "+");
    if (frozen == parameter.frozen()) continue;
    changed[frozen ? 1 : 0].push_back(parameter);
    if (!parameter.trainable()) without_memory.push_back(parameter.name());
  }
  if (runtime().mesh().world()->size() > 1)
    runtime().require_equal(
        digest,
        "sherd::torch: requires_grad of the parameters differs between ranks; freeze and thaw the same "
        "parameters on every rank, between the same steps");
  if (changed[0].empty() && changed[1].empty()) return;
  const std::string& name = (changed[0].empty() ? changed[1] : changed[0]).front().name();
  if (!without_memory.empty())
    throw InvalidArgument(
        fmt::format("sherd::torch: requires_grad was turned on for parameters that had it off in "
                    "fully_shard(), and so have no memory for "
                    "gradients: '{}'; shard the model with requires_grad on, and turn it off afterwards",
                    fmt::join(without_memory, "', '")));
  if (const std::string why = runtime().pending(); !why.empty())
    throw InvalidArgument(fmt::format(
        "sherd::torch: requires_grad of parameter '{}' was switched in the midst of a step: {}", name, why));
  runtime().set_frozen(changed[0], false);
  runtime().set_frozen(changed[1], true);
}

void Model::lend(const at::Tensor& view, const char* gone) {
  std::erase_if(lent_, [](const Lent& lent) { return lent.memory.expired(); });
  if (view.numel() > 0) lent_.push_back({view.storage().getWeakStorageImpl(), gone});
}

void Model::require_user_of_gradients() const {
  if (used_ || gradients_of_ != runtime().step() || runtime().update_sets()->count() > 0) return;
  throw InvalidArgument(
      "zero_grad() of a sharded model whose gradients have no user: it has neither a sherd::torch::Optimizer "
      "nor "
      "LocalShards, so nothing is trained. An optimizer over model->parameters() finds no gradients there; "
      "give it those of "
      "sherd::torch::LocalShards, or use sherd::torch::Optimizer. To throw gradients away on purpose: "
      "sherd::zero_grad(sherd::torch::root_of(*model))");
}

void Model::require_whole(const ::torch::nn::Module& root) const {
  std::vector<std::string> wrong;
  for (const auto& p : root.named_parameters())
    if (description_.parameter_of(p.value()) == nullptr && p.value().requires_grad() &&
        !unit_of_parameter(p.value()))
      wrong.push_back(fmt::format(
          "parameter '{}' was registered after fully_shard(), and other ranks would not receive its gradient",
          p.key()));
  for (size_t b = 0; b < buffer_memory_.size(); ++b) {
    const auto& [buffer, tensor] = description_.buffers()[b];
    if (tensor.storage().unsafeGetStorageImpl() != buffer_memory_[b].unsafeGetStorageImpl())
      wrong.push_back(fmt::format(
          "buffer '{}' has other memory than sherd gave it, by set_data(), torch::load(), or because "
          "another sharded model has it, too; write to it in place (copy_())",
          buffer.name()));
  }
  if (!wrong.empty()) throw InvalidArgument(fmt::format("sherd::torch: {}", fmt::join(wrong, "; ")));
}

uint64_t Model::step() {
  const uint64_t now = runtime().step();
  if (std::exchange(step_, now) != now)
    for (auto& u : units_) u->due = 0;
  return step_;
}

void Model::shard(::torch::nn::Module& root, const Wrap& wrap, const ParameterInit& init) {
  const DeviceMesh& mesh = wrap.mesh;
  if (sharded()) throw InvalidArgument("sherd::torch::fully_shard: this root is sharded already");
  device_ = TorchDevice::of(mesh.world()->device());
  mesh.world()->device().use_callers_team();
  if (mesh.world()->device().kind() == DeviceKind::cpu) keep_freed_memory();
  description_.require_unchanged(root);
  require_places(root);
  const FirstValues first(root, init, wrap.root.seed);
  first.require_known();
  device_->require_usable(*mesh.world());
  {
    const Serving entry(*mesh.world(), Purpose::entry("sherd::torch::fully_shard"));
    require_alike(*mesh.world());
  }
  // Modules precede their inner ones in this list, and inner units must come first.
  const auto modules = root.modules(/*include_self=*/false);
  for (auto m = modules.rbegin(); m != modules.rend(); ++m) {
    const Attached* attached = attached_to(**m);
    if (attached == nullptr || !attached->noted) continue;
    Mirror& mirror = *description_.mirror_of(**m);
    if (mirror.wrap() == nullptr) sherd::fully_shard(mirror, attached->noted->mesh, attached->noted->options);
  }
  sherd::fully_shard(description_.root(), mesh, wrap.options, wrap.root);
  fill_shards();
  if (!first.empty()) fill_shards_with(first, *mesh.world());
  take_over_buffers();
  take_over(root);
  for (const auto& [parameter, tensor] : description_.parameters())
    mixed_ = mixed_ || parameter.group().plan().dtype != DType::f32;
}

void Model::require_places(const ::torch::nn::Module& root) const {
  std::vector<std::string> elsewhere;
  const auto look = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined() && !tensor.is_cpu() && !tensor.is_meta() && tensor.device() != device_->place())
      elsewhere.push_back(fmt::format("{} ({})", name, tensor.device().str()));
  };
  for (const auto& p : root.named_parameters()) look(p.key(), p.value());
  for (const auto& b : root.named_buffers()) look(b.key(), b.value());
  if (!elsewhere.empty())
    throw InvalidArgument(
        fmt::format("sherd::torch::fully_shard: the mesh is one of {}, and elsewhere than there, on the CPU "
                    "and on the meta device "
                    "are: {}; move the module first",
                    device_->place().str(), fmt::join(elsewhere, ", ")));
}

void Model::require_alike(Communicator& world) const {
  Stream& stream = world.device().compute();
  std::vector<uint64_t> digests;
  uint64_t digest = 0;
  for (const auto& [parameter, tensor] : description_.parameters()) {
    const uint64_t name = hash64(0, parameter.name());
    digests.push_back(tensor.is_meta() ? hash64(name, "meta") : hash64(name, bytes_of(on_host(tensor))));
    digest = hash64(digest ^ digests.back(), {});
  }
  const std::array<uint64_t, 2> mine{digest, digests.size()};
  const std::vector<ValueComparison> whole = compare_values(world, stream, mine);
  if (whole[0].equal()) return;
  // All ranks have this result, so all of them compare further.
  std::string first;
  if (whole[1].equal()) {
    const std::vector<ValueComparison> each = compare_values(world, stream, digests);
    for (size_t i = 0; i < each.size() && first.empty(); ++i)
      if (!each[i].equal())
        first = fmt::format("; the first is '{}'", description_.parameters()[i].first.name());
  }
  throw RanksDiffer(
      fmt::format(
          "sherd::torch::fully_shard: the modules of the ranks hold different weights: {}{}; call "
          "broadcast_from_rank_0() before, or make them with the same seed (torch::manual_seed(), one "
          "rank after the other where ranks are threads, for libtorch has one generator for all of "
          "them), or load the same weights into each",
          whole[0].text, first),
      whole[0].odd_ranks);
}

void Model::fill_shards() {
  Stream& compute = runtime().device().compute();
  const at::NoGradGuard no_grad;
  WeightsChange change(runtime());
  for (const auto& [parameter, tensor] : description_.parameters())
    if (!tensor.is_meta()) to_shard(compute, parameter, tensor);
  change.end();
  join();
  for (const auto& [buffer, tensor] : description_.buffers())
    if (!tensor.is_meta()) device_->write(buffer.data(), on_host(tensor));
}

void Model::fill_shards_with(const FirstValues& values, Communicator& world) {
  Stream& compute = runtime().device().compute();
  const at::NoGradGuard no_grad;
  uint64_t digest = 0;
  WeightsChange change(runtime());
  values.make([&](const at::Tensor& tensor) {
    digest = hash64(digest, bytes_of(tensor));
    if (const Parameter* parameter = description_.parameter_of(tensor)) {
      to_shard(compute, *parameter, tensor);
    } else {
      device_->write(description_.buffer_of(tensor)->data(), on_host(tensor));
    }
  });
  change.end();
  join();
  Tensor scratch;
  require_equal(
      world, compute, digest,
      "sherd::torch::fully_shard: the ranks gave other first values to modules from the meta device; what "
      "gives them has to do the same on every rank",
      scratch);
}

void Model::take_over_buffers() {
  const at::NoGradGuard no_grad;
  for (const auto& [buffer, tensor] : description_.buffers()) {
    become(tensor, view_of(buffer.data(), tensor.sizes(), tensor.scalar_type(), device_->place()));
    buffer_memory_.push_back(tensor.storage());
    lend(tensor, "a buffer of a model that was sharded by sherd, whose root is gone, and its memory with it");
  }
}

void Model::take_over(::torch::nn::Module& root) {
  for (const auto& unit : runtime().units()) {
    auto use = std::make_shared<UnitUse>(weak_from_this(), unit, device_);
    size_t w = 0;
    for (const Parameter& p : unit->params()) {
      const auto& all = description_.parameters();
      const auto found =
          std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.first == p; });
      use->add(p, found->second);
      const size_t weight = w++;
      auto before = std::move(autograd::impl::post_acc_grad_hooks(found->second));
      if (auto* gone = dynamic_cast<GradientArrived*>(before.get())) before = gone->take_before();
      autograd::impl::set_post_acc_grad_hooks(
          found->second, std::make_unique<GradientArrived>(use, weight, std::move(before)));
    }
    units_.push_back(use);
    if (unit->root()) root_unit_ = use;
  }
  const auto give = [&](::torch::nn::Module& module) {
    const Mirror* mirror = description_.mirror_of(module);
    if (Attached* const there = attached_to(module); there != nullptr && mirror != nullptr)
      there->noted.reset();
    if (mirror == nullptr || !mirror->unit()) return;
    Attached& attached = attach_to(module);
    const auto found = std::find_if(units_.begin(), units_.end(),
                                    [&](const auto& u) { return &u->unit() == mirror->unit().get(); });
    attached.unit = *found;
    put_first(module);
  };
  give(root);
  for (const auto& module : root.modules(/*include_self=*/false)) give(*module);
  step();
}

}  // namespace sherd::torch::detail
