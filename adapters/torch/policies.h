// Policies: units, compute dtypes and recomputation of modules chosen by type or by name.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>

#include <sherd/fsdp/fully_shard.h>

namespace sherd::torch {

/// Chooses modules of a tree by object and full name ("" for the root).
using ModuleChoice = std::function<bool(const ::torch::nn::Module& module, const std::string& name)>;

/// Chooses modules of one of the types M or derived from it: of_type<torch::nn::LinearImpl, torch::nn::Conv2dImpl>().
template <class... M>
ModuleChoice of_type() {
  return [](const ::torch::nn::Module& module, const std::string&) {
    return ((dynamic_cast<const M*>(&module) != nullptr) || ...);
  };
}
/// Chooses modules whose full name matches a NamePattern (fsdp/name_pattern.h).
/// @throws InvalidArgument for an invalid one.
ModuleChoice of_name(const std::string& pattern);
/// Chooses libtorch's normalizations and SyncBatchNorm.
ModuleChoice norms();

/// Calls wrap() (fully_shard.h) for every chosen module below `root`, without `root` itself.
/// @returns their number. @throws InvalidArgument without one; what wrap() throws.
int wrap_each(::torch::nn::Module& root, const ModuleChoice& choice, const DeviceMesh& mesh,
              const FullyShardOptions& options = {});

/// Sets the compute dtype, f32 or bf16, of parameters registered in the chosen modules themselves. Other parameters have
/// FullyShardOptions::compute_dtype. Before fully_shard():
///
///     sherd::torch::set_compute_dtype(*model, sherd::torch::norms(), sherd::DType::f32);
///
/// @returns the number of parameters. @throws InvalidArgument when the chosen modules have none, for other dtypes, and after
/// fully_shard().
int set_compute_dtype(::torch::nn::Module& root, const ModuleChoice& choice, DType dtype);

/// Recomputes the calls of chosen modules in backward, as recompute() (recompute.h) around each call does. Of the chosen
/// modules, in the order of modules(), it takes the first and every `every`-th after it; an earlier choice ends. At any time
/// between steps.
///
///     sherd::torch::recompute_calls(*model, sherd::torch::of_type<BlockImpl>(), 2);
///
/// The modules are called as units are (SHERD_TORCH_MODULE, Sharded<M> or call()); they need not be units. A function given
/// to call() is copied and runs again in backward: what it refers to must exist until then.
/// @returns the number of modules taken. @throws InvalidArgument without a chosen module, and for an `every` below 1. A call
/// throws NotSupported when an argument or the result cannot be copied.
int recompute_calls(::torch::nn::Module& root, const ModuleChoice& choice, int every = 1);

}  // namespace sherd::torch
