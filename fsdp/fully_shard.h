// fully_shard(): wrapping of modules.
#pragma once

#include <functional>
#include <iterator>
#include <string>
#include <type_traits>

#include <sherd/fsdp/runtime.h>

namespace sherd {

/// Makes one unit of the parameters below `module` that no earlier call has claimed: one collective gathers
/// them, one reduces their gradients. Call it on inner modules first and on the root (the module without a
/// parent) last. A tied parameter that modules outside `module` also hold is left to the wrap of a common
/// ancestor.
///
/// The root's call checks everything, computes layouts, compares their fingerprint over the mesh, allocates
/// this rank's shards and fills them. Earlier calls only record their arguments. Collective; same calls on
/// every rank.
/// @throws InvalidArgument naming all invalid options (unknown mesh dimension or ignored name, prefetch < 0,
/// mixed compute dtypes, ...); all parameters whose tensor shard differs from this rank's coordinate in their
/// mesh; all mesh dimensions without a meaning for a unit (FullyShardOptions::shard_dim); meshes that cover
/// other ranks than the root's; a module that is wrapped twice or after its root; a parameter that belongs to
/// another sharded model.
/// @throws ShapeMismatch when ranks wrapped different models or options; OutOfMemory when a buffer does not
/// fit the limit. When the root's call throws, all wraps below it are undone and may be tried again.
void fully_shard(ModuleBase& module, const DeviceMesh& mesh, const FullyShardOptions& options = {});
/// The same for the root. @throws InvalidArgument also for a module with a parent.
void fully_shard(ModuleBase& root, const DeviceMesh& mesh, const FullyShardOptions& options,
                 const RootOptions& root_options);

/// Wraps each module of a list as a unit of its own. Elements are modules or pointers to them (for example a
/// vector of std::unique_ptr). None of them is the root.
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

/// Wraps every module below `root` for which `which(full name, module)` returns true, innermost first. Each
/// is a unit of its own with the same mesh and options. The root needs a call of its own, the last.
/// @returns the number of modules that it wrapped.
/// @throws InvalidArgument when no module matches, or naming all matches that are wrapped already. Nothing is
/// wrapped then.
int fully_shard_all(ModuleBase& root,
                    const std::function<bool(const std::string& name, ModuleBase& module)>& which,
                    const DeviceMesh& mesh, const FullyShardOptions& options = {});

/// Wraps every module of type M (or derived from it): fully_shard_all<Block>(model, mesh, options).
template <class M>
int fully_shard_all(ModuleBase& root, const DeviceMesh& mesh, const FullyShardOptions& options = {}) {
  return fully_shard_all(
      root, [](const std::string&, ModuleBase& module) { return dynamic_cast<M*>(&module) != nullptr; }, mesh,
      options);
}

/// Aborts the current step, for example because an exception ended a forward or backward and the batch is to
/// be skipped. Calls ShardRuntime::reset_step(). The owner of a tape that holds operations of the step clears
/// it (nn::Tape::clear()). Collective, after the exception has left the model.
void reset_step(ModuleBase& root);

/// Drops the gradients of a finished backward without a step (for example after an exploding batch),
/// including those accumulated over microbatches so far. The next backward starts from zero. Calls
/// ShardRuntime::zero_grad() for all parameters; Optimizer::zero_grad() does so for one optimizer's. It is
/// cheap, and optional in a loop: Optimizer::step() releases the gradients it has used, so a PyTorch-style
/// loop that begins each iteration with zero_grad() trains the same. It drops gradients alone, between
/// passes. After an exception in a forward or backward use reset_step(), which does more and blocks the host.
void zero_grad(ModuleBase& root);

/// Returns the runtime of a sharded root. @throws InvalidArgument before fully_shard(root).
ShardRuntime& runtime_of(const ModuleBase& root);

}  // namespace sherd
