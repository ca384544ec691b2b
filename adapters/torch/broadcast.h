// Parameters and buffers of world rank 0 on all ranks.
#pragma once

#include <torch/nn/module.h>

#include <sherd/dtensor/mesh.h>

namespace sherd::torch {

/// Copies the parameters and buffers of world rank 0's `module` to every rank, as DDP's constructor in Python
/// does: ranks may then make or load different ones. Those on the meta device are not changed.
///
///     Net model;                                                     // with any seed
///     sherd::torch::broadcast_from_rank_0(*model, mesh);             // rank 0's
///     sherd::torch::fully_shard<BlockImpl>(*model, mesh);
///
/// Before fully_shard(). Collective: broadcasts of 4 MiB at most, in which tensors are packed in the order of
/// named_parameters() and named_buffers(), and one for each larger tensor.
/// @throws InvalidArgument for a module whose parameters are sharded; RanksDiffer on every rank where names, shapes or
/// dtypes differ.
void broadcast_from_rank_0(::torch::nn::Module& module, const DeviceMesh& mesh);

/// Copies the buffers only, at any time outside of calls: before each forward it is DDP's broadcast_buffers.
/// Running statistics are then those of rank 0's batches on every rank. Those of SyncBatchNorm
/// (sync_batch_norm.h) are those of all batches.
void broadcast_buffers(::torch::nn::Module& module, const DeviceMesh& mesh);

}  // namespace sherd::torch
