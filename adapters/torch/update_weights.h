// Changes of weights by the program: clipping, averages of models, norms of rows.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>

namespace sherd::torch {

/// Calls change() while all parameters below `module` are unsharded in f32, the precision of their master
/// weights, whatever the compute dtype. Afterwards each rank keeps its pieces of the values, and the rest is
/// freed. A parameter that several modules share is one tensor; frozen ones change as well.
///
///     sherd::torch::update_weights(*critic, [&] {
///       for (auto& p : critic->parameters()) p.clamp_(-0.01, 0.01);
///     });
///
/// The weights are the same under every strategy: change() does the same on every rank, which is compared.
/// While it runs, each rank has all parameters of `module`: for a model that no rank can hold, call it block
/// by block. It calls no wrapped module. No gradients are recorded. When it throws, nothing has changed.
/// State of optimizers stays.
///
/// Collective, between steps: on all ranks at the same point, after gradients were used or dropped.
/// @throws InvalidArgument on every rank: for a module without parameters of a sharded tree, inside of a call
/// or an Unsharded, or in a running step; RanksDiffer on every rank when values differ between ranks, without
/// any change.
void update_weights(::torch::nn::Module& module, const std::function<void()>& change);

/// Changes each element by itself, without communication: calls change(name, shard) with this rank's interval
/// of each parameter's f32 master weights, [n], which may be empty. Use the function above for a change that
/// depends on other elements, or on random numbers (ranks may hold the same interval). When change() throws,
/// some parameters may have changed.
/// @throws InvalidArgument also where a parameter's masters are not fp32 (FullyShardOptions::master).
///
///     sherd::torch::update_weights(*critic, [](const std::string&, torch::Tensor& shard) { shard.clamp_(-0.01, 0.01); });
void update_weights(::torch::nn::Module& module,
                    const std::function<void(const std::string& name, at::Tensor& shard)>& change);

}  // namespace sherd::torch
