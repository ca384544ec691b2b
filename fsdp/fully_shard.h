// fully_shard(): wrapping of modules.
#pragma once

#include <functional>
#include <iterator>
#include <string>
#include <type_traits>

#include <sherd/fsdp/runtime.h>

namespace sherd {

/// Makes the parameters below `module` that no earlier call has claimed one unit: gathered by one collective,
/// reduced by one. Call it on inner modules first and on the root (the module without a parent) last. A
/// parameter that modules outside `module` hold, too (tied), is left to the wrap of a common ancestor.
///
/// The root's call checks everything, computes layouts, compares their fingerprint over the mesh, allocates
/// this rank's shards and fills them; the calls before only take note. Collective; same calls on every rank.
/// @throws InvalidArgument naming all options that cannot be (unknown mesh dimension or ignored name,
/// prefetch < 0, mixed compute dtypes, ...), all parameters whose tensor shard is not this rank's place in
/// the mesh they are wrapped with, or all mesh dimensions that mean nothing to a unit
/// (FullyShardOptions::shard_dim) and meshes that cover other ranks than the root's; for a module that is
/// wrapped twice or after its root, and for a parameter that belongs to another sharded model;
/// ShapeMismatch when ranks wrapped different models or options; OutOfMemory when a buffer does not fit the
/// limit. When the root's call throws, all wraps below it are undone and may be tried again.
void fully_shard(ModuleBase& module, const DeviceMesh& mesh, const FullyShardOptions& options = {});

/// The same for each module of a list, each a unit of its own: modules, or pointers to them (a vector of
/// std::unique_ptr, say). None of them is the root.
template <class List>
  requires requires(List& list) { std::begin(list) != std::end(list); }
void fully_shard(List& modules, const DeviceMesh& mesh, const FullyShardOptions& options = {}) {
  for (auto& module : modules) {
    if constexpr (std::is_base_of_v<ModuleBase, std::remove_reference_t<decltype(module)>>) {
      fully_shard(static_cast<ModuleBase&>(module), mesh, options);
    } else {
      fully_shard(static_cast<ModuleBase&>(*module), mesh, options);
    }
  }
}

/// Wraps every module below `root` that `which` says yes to, each a unit of its own with the same mesh and options,
/// innermost first; `which` is given its full name and itself. The root is left to a call of its own, the last.
/// @returns how many it wrapped.
/// @throws InvalidArgument when it is none, or naming all of them that are wrapped already; nothing is wrapped then.
int fully_shard_all(ModuleBase& root, const std::function<bool(const std::string& name, ModuleBase& module)>& which,
                    const DeviceMesh& mesh, const FullyShardOptions& options = {});

/// The same of every module of type M (or derived from it): fully_shard_all<Block>(model, mesh, options).
template <class M>
int fully_shard_all(ModuleBase& root, const DeviceMesh& mesh, const FullyShardOptions& options = {}) {
  return fully_shard_all(
      root, [](const std::string&, ModuleBase& module) { return dynamic_cast<M*>(&module) != nullptr; }, mesh, options);
}

/// Gives up the step that runs, for instance because an exception ended a forward or backward and the batch
/// is to be skipped: ShardRuntime::reset_step(), and every module forgets what it kept for backwards
/// (ModuleBase::drop_activations()). Tapes that hold the step's operations are cleared by their owner
/// (nn::Tape::clear()). Collective, after the exception has left the model.
void reset_step(ModuleBase& root);

/// Gives up the gradients of a finished backward without a step (a batch that explodes, say), those that microbatches
/// have summed up so far included: the next backward starts from zero. ShardRuntime::zero_grad() of all parameters;
/// one optimizer's alone: Optimizer::zero_grad(). Cheap, and needed nowhere else: Optimizer::step() gives the gradients
/// that it has used up itself, so that a loop which begins every iteration with zero_grad(), as PyTorch's do, trains
/// the same. It gives up gradients alone, between passes; once an exception has ended a forward or a backward, that
/// step is given up by reset_step(), which does more and blocks the host.
void zero_grad(ModuleBase& root);

/// The runtime of a sharded root. @throws InvalidArgument before fully_shard(root).
ShardRuntime& runtime_of(const ModuleBase& root);

}  // namespace sherd
