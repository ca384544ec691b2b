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
/// Before fully_shard(), for it decides where matrices may be cut. Again, it replaces what was decided.
/// @returns the decision, whose format() is a table to print.
/// @throws InvalidArgument for a model that is sharded already; what sherd::route() and root_of() throw.
Routing route(::torch::nn::Module& root, const RoutingOptions& options = {});

/// AdamW and Muon over the pieces of a sharded model, in the place of an optimizer of libtorch's:
///
///     sherd::torch::Optimizer optimizer(*model, {.weight_decay = 0.1});
///     for (auto& batch : data) {
///       loss(model(batch.x), batch.y).backward();
///       sherd::torch::clip_grad_norm(*model, 1.0);
///       optimizer.step(1e-3);      // the next step has new gradients, without zero_grad()
///     }
///
/// It is a sherd::Optimizer, for checkpoints and all else, and step(), skipped(), zero_grad() and so on are that one's.
/// `root` outlives it. A model has such optimizers or LocalShards.
class Optimizer : public sherd::Optimizer {
 public:
  /// By what route() has decided.
  /// @throws InvalidArgument before fully_shard(), and when route() was not called before that; for a module that is no
  /// root; what sherd::Optimizer throws. Collective.
  explicit Optimizer(::torch::nn::Module& root, const OptimizerOptions& options = {});
  /// By a part of it (Routing::part()), beside other optimizers, or by what sherd::route() of root_of(root) returned.
  Optimizer(::torch::nn::Module& root, const Routing& routing, const OptimizerOptions& options);
};

/// Learning rate for Optimizer::step() that torch::optim's schedulers change:
///
///     sherd::torch::ScheduledRate rate(1e-3);
///     torch::optim::StepLR schedule(rate, /*step_size=*/30, /*gamma=*/0.1);
///     optimizer.step(rate.now());
///     schedule.step();
///
/// Like all options of torch::optim it is in no checkpoint: after a resume call schedule.step() as often as before.
class ScheduledRate : public ::torch::optim::SGD {
 public:
  explicit ScheduledRate(double lr)
      : SGD(std::vector<at::Tensor>{at::empty({0})}, ::torch::optim::SGDOptions(lr)) {}
  double now() const { return param_groups().front().options().get_lr(); }
};

/// Scales the gradients of a sharded model so that their norm over all ranks is at most `max_norm`:
/// sherd::clip_grad_norm(), which says more. Nothing waits; read_stats() reads the norm from before.
/// @throws InvalidArgument before fully_shard(); what that throws.
std::shared_ptr<const GradientStats> clip_grad_norm(::torch::nn::Module& root, double max_norm,
                                                    const ClipOptions& options = {});
/// The figures, once they are there: waits for that. The same on every rank.
GradientStats read_stats(::torch::nn::Module& root, const std::shared_ptr<const GradientStats>& stats);

}  // namespace sherd::torch
