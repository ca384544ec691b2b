#include <sherd/torch/update_weights.h>

#include <fmt/format.h>

#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <sherd/fsdp/weights_change.h>
#include <sherd/kernels/random/random.h>
#include <sherd/torch/detail/attached.h>
#include <sherd/torch/detail/model.h>
#include <sherd/torch/detail/tensor_memory.h>

namespace sherd::torch {
namespace {

/// The parameters below a module, each once, and their model.
struct Below {
  std::shared_ptr<detail::Model> model;
  std::vector<std::pair<Parameter, at::Tensor>> parameters;
};

Below below(::torch::nn::Module& module) {
  Below all;
  std::set<const at::TensorImpl*> seen;
  for (const auto& p : module.named_parameters()) {
    const auto unit = detail::unit_of_parameter(p.value());
    if (!unit || !seen.insert(p.value().unsafeGetTensorImpl()).second) continue;
    all.model = unit->model();
    all.parameters.emplace_back(*all.model->description().parameter_of(p.value()), p.value());
  }
  if (!all.model)
    throw InvalidArgument(
        fmt::format("sherd::torch::update_weights: module '{}' has no parameters of a tree that is sharded; "
                    "write to those of other modules "
                    "as ever, under torch::NoGradGuard",
                    module.name()));
  if (const std::string why = all.model->runtime().pending(); !why.empty())
    throw InvalidArgument(fmt::format("sherd::torch::update_weights: in the midst of a step: {}", why));
  for (const auto& unit : all.model->units()) unit->require_own_memory();
  return all;
}

/// Scope in which calls of the model are refused.
class Updating {
 public:
  explicit Updating(detail::Model& model) : model_(model) { model_.updating = true; }
  ~Updating() { model_.updating = false; }
  Updating(const Updating&) = delete;
  Updating& operator=(const Updating&) = delete;

 private:
  detail::Model& model_;
};

/// A parameter that has all its values in libtorch's memory, in f32, until its destruction.
class Whole {
 public:
  Whole(const at::Tensor& tensor, at::Tensor values)
      : tensor_(tensor), own_(tensor.detach()), values_(std::move(values)) {
    detail::become(tensor_, values_);
  }
  ~Whole() {
    if (tensor_.defined()) detail::become(tensor_, own_);
  }
  Whole(Whole&&) = default;
  Whole& operator=(Whole&&) = delete;
  const at::Tensor& tensor() const { return tensor_; }

 private:
  at::Tensor tensor_, own_, values_;
};

uint64_t digest_of(uint64_t digest, const at::Tensor& values) {
  const at::Tensor host = detail::on_host(values);
  const auto* const bytes = static_cast<const char*>(host.const_data_ptr());
  for (size_t at = 0; at < host.nbytes(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, std::min(sizeof word, host.nbytes() - at));
    digest = (digest ^ word) * 0x9e3779b97f4a7c15u;
    digest ^= digest >> 32;
  }
  return digest;
}

}  // namespace

void update_weights(::torch::nn::Module& module, const std::function<void()>& change) {
  const Below all = below(module);
  ShardRuntime& runtime = all.model->runtime();
  Stream& compute = runtime.device().compute();
  const at::NoGradGuard no_grad;
  std::vector<Whole> whole;
  {
    const auto on_compute = all.model->device().on_compute();
    for (const auto& [parameter, tensor] : all.parameters) {
      const Tensor full = parameter.dtensor().full_tensor(compute);
      all.model->join();
      // A copy, even where a rank holds all of it: if change() throws, nothing has changed.
      whole.emplace_back(
          tensor, detail::view_of(full, tensor.sizes(), at::kFloat, all.model->device().place()).clone());
    }
    const Updating updating(*all.model);
    change();
  }
  uint64_t digest = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    const at::Tensor& t = whole[i].tensor();
    const auto& [parameter, tensor] = all.parameters[i];
    if (t.scalar_type() != at::kFloat || t.numel() != parameter.numel())
      throw InvalidArgument(
          fmt::format("sherd::torch::update_weights: parameter '{}' has another shape or dtype than before; "
                      "write to it in place",
                      parameter.name()));
    digest = digest_of(digest, t);
  }
  if (runtime.mesh().world()->size() > 1)
    runtime.require_equal(
        digest,
        "sherd::torch::update_weights: the ranks gave other values to the parameters; do the same on every "
        "rank, with one seed where numbers are random");
  WeightsChange update(runtime);
  for (size_t i = 0; i < whole.size(); ++i)
    detail::to_shard(compute, all.parameters[i].first, whole[i].tensor());
  update.end();
  all.model->join();
}

void update_weights(::torch::nn::Module& module,
                    const std::function<void(const std::string& name, at::Tensor& shard)>& change) {
  const Below all = below(module);
  for (const auto& [parameter, tensor] : all.parameters)
    detail::require_f32_masters(parameter, "update_weights with shards");
  const at::NoGradGuard no_grad;
  WeightsChange update(all.model->runtime());
  all.model->join();
  {
    const auto on_compute = all.model->device().on_compute();
    const Updating updating(*all.model);
    for (const auto& [parameter, tensor] : all.parameters) {
      const Tensor memory = parameter.shard();
      const at::Tensor own =
          detail::view_of(memory, {memory.numel()}, at::kFloat, all.model->device().place());
      at::Tensor shard = own;
      const auto take_away = [&] {
        if (own.numel() > 0)
          detail::take_memory_away(*own.storage().unsafeGetStorageImpl(),
                                   "a shard of sherd::torch::update_weights(), outside of its function");
      };
      try {
        change(parameter.name(), shard);
        if (!shard.is_same(own)) own.copy_(shard);
      } catch (...) {
        take_away();
        throw;
      }
      take_away();
    }
  }
  update.end();
}

}  // namespace sherd::torch
