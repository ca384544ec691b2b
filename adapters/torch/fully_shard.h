// Sharding of libtorch modules.
#pragma once

#include <torch/nn/module.h>

#include <sherd/fsdp/fully_shard.h>
#include <sherd/torch/reset_parameters.h>

/// Units of sherd for modules of libtorch. The parameters keep their identity and their shape. Their memory
/// is sherd's buffers, and is present while a call of the module needs it. docs/libtorch.md is the tutorial;
/// it says which thread runs what.
///
/// Within a program that uses libtorch never write `using namespace sherd`: the name `torch` would then mean
/// two namespaces.
namespace sherd::torch {

/// Notes that the parameters below `module` without an inner unit are a unit of their own, with these
/// options. They are unsharded together around calls of the module, and reduced together. Cheap;
/// fully_shard() of the root does the work. A second call for the same module replaces the note.
///
/// The module has to be *called* through sherd: its type is made by SHERD_TORCH_MODULE, or is a Sharded<M>,
/// or it is called by sherd::torch::call() (call.h). Any other call has no weights, and libtorch throws an
/// error that names parameter and unit.
/// @throws InvalidArgument when the module belongs to a root that is sharded already.
void wrap(::torch::nn::Module& module, const DeviceMesh& mesh, const FullyShardOptions& options = {});

/// Shards the tree below `root`. Each module noted by wrap() is a unit, and the root has the remaining
/// parameters. From here on the weights are distributed over the ranks of the mesh. Module::to() and clone()
/// of any of these modules throw, and so does torch::save().
///
/// Parameters are f32 and dense. They share no memory unless nothing trains them. Those with requires_grad
/// off are frozen; one that is registered in several places is tied. The values are the modules' present
/// ones. They must be the same on all ranks, which is checked (torch::manual_seed() with one seed, or weights
/// loaded by each). Persistent buffers move to memory that checkpoints read; each rank continues with its own
/// values.
///
/// Parameters and buffers on the meta device (meta_device.h) get values from `init`. Without it they get
/// those of reset_parameters() with RootOptions::seed, which has no other use. They have memory for one
/// module at a time. A rank never holds more of them than its pieces and one module's.
///
/// Modules are on the CPU, on the meta device, or on the rank's own GPU; afterwards they are on the mesh's
/// device (device_of(), device.h). Ranks with GPUs need -DSHERD_TORCH_CUDA=ON, and a GPU for each rank of a
/// process. That is compiled, and was never run on a GPU (docs/libtorch.md).
///
/// Module::zero_grad() of the root drops gradients (sherd::zero_grad()). It throws InvalidArgument when the
/// step has gradients and the model has no optimizer for them, as when a torch::optim was given
/// model->parameters(). A program that only needs gradients calls sherd::zero_grad(root_of(root)).
///
/// Collective; same calls on every rank.
/// @throws NotCompiled for GPUs without that option, and NotSupported for ranks of one process that share
/// one, both before any change; InvalidArgument naming *all* unsupported parameters and buffers, before any
/// change; errors of sherd::fully_shard(), with the tree as before; ShapeMismatch on every rank when initial
/// values differ; errors of `init`, and InvalidArgument naming all elements that it left unwritten. After the
/// last two the modules are unusable.
void fully_shard(::torch::nn::Module& root, const DeviceMesh& mesh, const FullyShardOptions& options = {},
                 const RootOptions& root_options = {}, const ParameterInit& init = {});

/// Shards the tree with a unit for each module of type M (or derived from it) below `root`:
/// fully_shard<BlockImpl>(*model, ...).
/// @throws InvalidArgument also without such a module.
template <class M>
void fully_shard(::torch::nn::Module& root, const DeviceMesh& mesh, const FullyShardOptions& options = {},
                 const RootOptions& root_options = {}, const ParameterInit& init = {}) {
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
  fully_shard(root, mesh, options, root_options, init);
}

/// Distributed data parallelism, which libtorch's C++ frontend lacks: every rank has all weights, and
/// gradients are averaged. Calls fully_shard() of the root with Strategy::no_shard. Units noted before by
/// wrap() overlap the reduction of gradients with backward. They have that strategy too, whatever their
/// options say.
void data_parallel(::torch::nn::Module& root, const DeviceMesh& mesh, FullyShardOptions options = {},
                   const RootOptions& root_options = {}, const ParameterInit& init = {});

/// Returns the model as sherd's module: the same tree, names and shapes, without a forward. Functions of
/// sherd for models take it: route() (before fully_shard()), Optimizer, clip_grad_norm(), Accumulate,
/// zero_grad(), checkpoints, export_weights(). Made at the first call; lives as long as `root`.
/// @throws InvalidArgument naming all unsupported parameters and buffers, and for a module in a sharded tree
/// that is not its root.
ModuleBase& root_of(::torch::nn::Module& root);

/// Drops the running step after an exception in a forward or a backward: sherd::reset_step().
void reset_step(::torch::nn::Module& root);

}  // namespace sherd::torch
