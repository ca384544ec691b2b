// Changes of weights by the program: clipping, averages of models, norms of rows.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>

namespace sherd::torch {

/// Calls change() while all parameters below `module` are there as a whole, in f32, which is the precision of their master
/// weights whatever the compute dtype; afterwards each rank keeps its pieces of what is in them, and the rest goes. A
/// parameter that several modules share is one tensor; frozen ones change as well.
///
///     sherd::torch::update_weights(*critic, [&] {
///       for (auto& p : critic->parameters()) p.clamp_(-0.01, 0.01);
///     });
///
/// The weights are the same under every strategy: change() does the same on every rank, which is compared. While it runs,
/// each rank has all parameters of `module`: go from block to block of a model that no rank could hold. It calls no
/// wrapped module. No gradients are recorded. When it throws, nothing has changed. State of optimizers stays.
///
/// Collective, between steps: on all ranks at the same point, when gradients have been used or dropped.
/// @throws InvalidArgument on every rank, for a module without parameters of a sharded tree, inside of a call or an
/// Unsharded, or in the midst of a step; RanksDiffer on every rank when values differ between ranks, nothing having
/// changed.
void update_weights(::torch::nn::Module& module, const std::function<void()>& change);

/// The same for a change of each element by itself, without communication: calls change(name, shard) with this rank's
/// interval of each parameter's f32 master weights, [n], which may be empty. What depends on other elements, or on chance
/// (ranks may hold the same interval), is for the function above. When change() throws, some may have changed.
///
///     sherd::torch::update_weights(*critic, [](const std::string&, torch::Tensor& shard) { shard.clamp_(-0.01, 0.01); });
void update_weights(::torch::nn::Module& module,
                    const std::function<void(const std::string& name, at::Tensor& shard)>& change);

}  // namespace sherd::torch
