#include <sherd/torch/policies.h>

#include <fmt/format.h>
#include <torch/nn/modules.h>

#include <memory>
#include <utility>
#include <vector>

#include <sherd/fsdp/name_pattern.h>
#include <sherd/torch/detail/attached.h>
#include <sherd/torch/detail/model.h>
#include <sherd/torch/fully_shard.h>
#include <sherd/torch/sync_batch_norm.h>

namespace sherd::torch {
namespace {

std::vector<std::shared_ptr<::torch::nn::Module>> chosen(const ::torch::nn::Module& root,
                                                         const ModuleChoice& choice, const char* what) {
  std::vector<std::shared_ptr<::torch::nn::Module>> found;
  for (const auto& m : root.named_modules("", /*include_self=*/false))
    if (dynamic_cast<const detail::Attached*>(m.value().get()) == nullptr && choice(*m.value(), m.key()))
      found.push_back(m.value());
  if (found.empty())
    throw InvalidArgument(
        fmt::format("sherd::torch::{}: no module below the root is chosen; register modules by "
                    "register_module(), and name the type of the module itself (BlockImpl), not that of its "
                    "holder (Block)",
                    what));
  return found;
}

}  // namespace

ModuleChoice of_name(const std::string& pattern) {
  try {
    return [names = NamePattern(pattern)](const ::torch::nn::Module&, const std::string& name) {
      return names.matches(name);
    };
  } catch (const InvalidArgument& e) {
    throw InvalidArgument(fmt::format("sherd::torch::of_name: {}", e.what()));
  }
}

ModuleChoice norms() {
  namespace nn = ::torch::nn;
  return of_type<nn::LayerNormImpl, nn::GroupNormImpl, nn::BatchNorm1dImpl, nn::BatchNorm2dImpl,
                 nn::BatchNorm3dImpl, nn::InstanceNorm1dImpl, nn::InstanceNorm2dImpl, nn::InstanceNorm3dImpl,
                 SyncBatchNormImpl>();
}

int wrap_each(::torch::nn::Module& root, const ModuleChoice& choice, const DeviceMesh& mesh,
              const FullyShardOptions& options) {
  const auto modules = chosen(root, choice, "wrap_each");
  for (const auto& module : modules) wrap(*module, mesh, options);
  return static_cast<int>(modules.size());
}

int set_compute_dtype(::torch::nn::Module& root, const ModuleChoice& choice, DType dtype) {
  const detail::Model& model = detail::model_of(root);
  int parameters = 0;
  for (const auto& module : chosen(root, choice, "set_compute_dtype"))
    for (const auto& p : module->named_parameters(/*recurse=*/false)) {
      const Parameter* const known = model.description().parameter_of(p.value());
      if (known == nullptr) continue;
      Parameter(*known).set_compute_dtype(dtype);
      ++parameters;
    }
  if (parameters == 0)
    throw InvalidArgument(
        "sherd::torch::set_compute_dtype: the chosen modules have no parameters of their own");
  return parameters;
}

int recompute_calls(::torch::nn::Module& root, const ModuleChoice& choice, int every) {
  if (every < 1)
    throw InvalidArgument(fmt::format(
        "sherd::torch::recompute_calls: every = {}; give 1 for each chosen module, or more", every));
  const auto modules = chosen(root, choice, "recompute_calls");
  for (const auto& module : root.modules(/*include_self=*/false))
    if (detail::Attached* const attached = detail::attached_to(*module)) attached->recomputed = false;
  int count = 0;
  for (size_t i = 0; i < modules.size(); i += static_cast<size_t>(every), ++count)
    detail::attach_to(*modules[i]).recomputed = true;
  return count;
}

}  // namespace sherd::torch
