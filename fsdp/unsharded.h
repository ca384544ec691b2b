// Scope in which a model's parameters stay unsharded.
#pragma once

#include <memory>

#include <sherd/fsdp/module_base.h>

namespace sherd {

/// Scope in which the units of a sharded model stay unsharded: the constructor gathers all of them, and their uses gather nothing
/// until weights change. For passes that use every unit often, such as generation, evaluation or several forwards of a
/// reference model:
///
///     const Unsharded whole(model);
///     nn::generate(model, prompts);
///
/// The unsharded parameters take memory of their own, in their compute dtype (MemoryClass::gathered), from the constructor to the destructor.
/// Training inside is allowed and has the same bits: an update's weights are gathered at their next use. What the strategy stores unsharded
/// takes no more memory. Scopes may nest; the outermost counts. Collective; made and destroyed outside of forwards
/// and backwards.
class Unsharded {
 public:
  /// @throws OutOfMemory on every rank, naming the bytes, where the memory does not suffice on one of them; nothing is kept
  /// then. InvalidArgument before fully_shard(root), and inside a forward or backward; nothing is kept then, either.
  explicit Unsharded(ModuleBase& root);
  ~Unsharded();
  Unsharded(const Unsharded&) = delete;
  Unsharded& operator=(const Unsharded&) = delete;

 private:
  std::weak_ptr<ShardRuntime> runtime_;  // empty: an inner scope
};

}  // namespace sherd
