// Sharding of libtorch modules.
#pragma once

#include <torch/nn/module.h>

#include <sherd/fsdp/fully_shard.h>
#include <sherd/torch/reset_parameters.h>

/// A client of sherd's units for modules that are libtorch's: their parameters keep their identity and their
/// shape, and their memory is sherd's buffers, there while a call of the module needs it. docs/libtorch.md is
/// the tutorial, and says which thread runs what.
///
/// Within a program that uses libtorch never write `using namespace sherd`: the name `torch` would then mean
/// two namespaces.
namespace sherd::torch {

/// Notes that the parameters below `module` that no inner unit has are a unit of their own, with these
/// options: gathered together around calls of the module, reduced together. Cheap; fully_shard() of the root
/// does the work. Again for the same module it replaces the note.
///
/// The module has to be *called* through sherd: it is of a type made by SHERD_TORCH_MODULE, or a Sharded<M>,
/// or called by sherd::torch::call() (call.h). A call that goes past that finds no weights, and libtorch
/// throws an error that names parameter and unit.
/// @throws InvalidArgument when the module belongs to a root that is sharded already.
void wrap(::torch::nn::Module& module, const DeviceMesh& mesh, const FullyShardOptions& options = {});

/// Shards the whole tree below `root`: each module that wrap() has noted is a unit, and the root has the
/// rest. From here on the weights are spread over the ranks of the mesh, and Module::to() and clone() of any
/// of these modules throw, and torch::save() does.
///
/// Parameters are f32 and dense, and share no memory unless nothing trains them; those with requires_grad off are
/// frozen, one that is registered in several places is tied. The values are those that the modules have now,
/// which must be the same on all ranks (torch::manual_seed() with one seed, or weights loaded by each): that
/// is compared. Persistent buffers move to memory that checkpoints read; each rank continues with its own
/// values.
///
/// Parameters and buffers on the meta device (meta_device.h) are given values by `init`, or without it by
/// reset_parameters(), from FullyShardOptions::seed, which means nothing otherwise. They have memory for one module at
/// a time: no rank holds more of them than its pieces and one module's.
///
/// Modules are on the CPU, on the meta device, or on the rank's own GPU; afterwards they are where the mesh's device is
/// (device_of(), device.h). Ranks whose devices are GPUs need -DSHERD_TORCH_CUDA=ON, and one GPU each of a process's;
/// that is compiled, and was never run on a GPU (docs/libtorch.md).
///
/// Module::zero_grad() of the root gives gradients up (sherd::zero_grad()); it throws InvalidArgument when gradients have
/// come that no optimizer of this model is there to use, as when a torch::optim was given model->parameters(). Who wants
/// gradients alone calls sherd::zero_grad(root_of(root)).
///
/// Collective; same calls on every rank.
/// @throws NotCompiled for GPUs without that option, NotSupported for ranks of one process that share one, before
/// anything has changed; InvalidArgument naming *all* parameters and buffers that cannot be, when nothing has changed yet;
/// what sherd::fully_shard() throws, the tree being as before; ShapeMismatch on every rank when initial
/// values differ; what `init` throws, and InvalidArgument naming all that it has left unwritten, after either of which
/// the modules are of no use.
void fully_shard(::torch::nn::Module& root, const DeviceMesh& mesh, const FullyShardOptions& options = {},
                 const ParameterInit& init = {});

/// The same with a unit for each module of type M (or derived from it) below `root`:
/// fully_shard<BlockImpl>(*model, ...).
/// @throws InvalidArgument also without such a module.
template <class M>
void fully_shard(::torch::nn::Module& root, const DeviceMesh& mesh, const FullyShardOptions& options = {},
                 const ParameterInit& init = {}) {
  int found = 0;
  for (const auto& module : root.modules(/*include_self=*/false)) {
    if (dynamic_cast<M*>(module.get()) == nullptr) continue;
    wrap(*module, mesh, options);
    ++found;
  }
  if (found == 0)
    throw InvalidArgument(
        "fully_shard: no module below the root has the given type; register modules by "
        "register_module(), and name the type of the module itself (BlockImpl), not that of its holder "
        "(Block)");
  fully_shard(root, mesh, options, init);
}

/// Distributed data parallelism, which libtorch's C++ frontend lacks: every rank has all weights, and
/// gradients are averaged. fully_shard() of the root under Strategy::no_shard; units that wrap() noted before
/// make gradients travel while others are computed, and have that strategy, too, whatever their options say.
void data_parallel(::torch::nn::Module& root, const DeviceMesh& mesh, FullyShardOptions options = {},
                   const ParameterInit& init = {});

/// The model as sherd sees it: the same tree, names and shapes, without a forward. Whatever sherd does with a
/// model is done with this: route() (before fully_shard()), Optimizer, clip_grad_norm(), Accumulate,
/// zero_grad(), checkpoints, export_weights(). Made at the first call, and lives as long as `root` does.
/// @throws InvalidArgument naming all parameters and buffers that cannot be; for a module that is part of a
/// sharded tree but not its root.
ModuleBase& root_of(::torch::nn::Module& root);

/// Drops the running step, because an exception has ended a forward or a backward: sherd::reset_step().
void reset_step(::torch::nn::Module& root);

}  // namespace sherd::torch
