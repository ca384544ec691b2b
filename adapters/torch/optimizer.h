// sherd's optimizers for models of libtorch modules.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim.h>

#include <memory>
#include <vector>

#include <sherd/optim/clip.h>
#include <sherd/optim/optimizer.h>
#include <sherd/optim/routing.h>

namespace sherd::torch {

/// Decides which optimizer updates which parameter, as sherd::route() does, and keeps the decision for Optimizer:
///
///     sherd::torch::route(*model, {.optimizer = sherd::Algorithm::muon});   // hidden matrices; AdamW has the rest
///     sherd::torch::route(*model, {.optimizer = sherd::Algorithm::adamw});  // for all
///
/// Before fully_shard(), for it decides where matrices may be cut. A second call replaces the decision.
/// @returns the decision, whose format() is a table to print.
/// @throws InvalidArgument for a model that is sharded already; what sherd::route() and root_of() throw.
Routing route(::torch::nn::Module& root, const RoutingOptions& options = {});

/// AdamW and Muon on the pieces of a sharded model, instead of an optimizer of libtorch:
///
///     sherd::torch::Optimizer optimizer(*model, {.weight_decay = 0.1});
///     for (auto& batch : data) {
///       loss(model(batch.x), batch.y).backward();
///       sherd::torch::clip_grad_norm(*model, 1.0);
///       optimizer.step(1e-3);      // the next step has new gradients, without zero_grad()
///     }
///
/// It is a sherd::Optimizer, also for checkpoints; step(), skipped(), zero_grad() and the others are
/// documented there. `root` outlives it. A model has such optimizers or LocalShards.
class Optimizer : public sherd::Optimizer {
 public:
  /// Uses the decision of route().
  /// @throws InvalidArgument before fully_shard(), without an earlier route(), and for a module that is not a
  /// root; errors of sherd::Optimizer. Collective.
  explicit Optimizer(::torch::nn::Module& root, const OptimizerOptions& options = {});
  /// Uses `routing`: a part of it (Routing::part()) beside other optimizers, or the result of sherd::route()
  /// of root_of(root).
  Optimizer(::torch::nn::Module& root, const Routing& routing, const OptimizerOptions& options);
};

/// Learning rate for Optimizer::step(), changed by torch::optim's schedulers:
///
///     sherd::torch::ScheduledRate rate(1e-3);
///     torch::optim::StepLR schedule(rate, /*step_size=*/30, /*gamma=*/0.1);
///     optimizer.step(rate.now());
///     schedule.step();
///
/// Checkpoints do not have it, as all options of torch::optim: after a resume call schedule.step() as often
/// as before.
class ScheduledRate : public ::torch::optim::SGD {
 public:
  explicit ScheduledRate(double lr)
      : SGD(std::vector<at::Tensor>{at::empty({0})}, ::torch::optim::SGDOptions(lr)) {}
  double now() const { return param_groups().front().options().get_lr(); }
};

/// Scales the gradients of a sharded model so that their norm over all ranks is at most `max_norm`, as
/// sherd::clip_grad_norm() does. Does not wait; read_stats() returns the norm before scaling.
/// @throws InvalidArgument before fully_shard(); errors of sherd::clip_grad_norm().
std::shared_ptr<const GradientStats> clip_grad_norm(::torch::nn::Module& root, double max_norm,
                                                    const ClipOptions& options = {});
/// Waits for the figures and returns them. The same on every rank.
GradientStats read_stats(::torch::nn::Module& root, const std::shared_ptr<const GradientStats>& stats);

}  // namespace sherd::torch
