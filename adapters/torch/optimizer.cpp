#include <sherd/torch/optimizer.h>

#include <sherd/torch/detail/attached.h>
#include <sherd/torch/detail/model.h>

namespace sherd::torch {
namespace {

constexpr const char* kOptimizer = "sherd::torch::Optimizer";

const Routing& routing_of(::torch::nn::Module& root) {
  const detail::Model& model = detail::sharded_model_of(root, kOptimizer);
  if (!model.routing)
    throw InvalidArgument(
        "sherd::torch::Optimizer: nothing says which optimizer updates which parameter; call "
        "sherd::torch::route(), with {.optimizer = sherd::Algorithm::muon} or adamw, before fully_shard(), "
        "for "
        "it decides where matrices may be cut");
  return *model.routing;
}

}  // namespace

Routing route(::torch::nn::Module& root, const RoutingOptions& options) {
  detail::Model& model = detail::model_of(root);
  if (model.sharded())
    throw InvalidArgument(
        "sherd::torch::route: the model is sharded already, and where its matrices are cut is decided; call "
        "route() before fully_shard()");
  model.routing.reset();
  model.routing = sherd::route(model.root(), options);
  return *model.routing;
}

Optimizer::Optimizer(::torch::nn::Module& root, const OptimizerOptions& options)
    : Optimizer(root, routing_of(root), options) {}

Optimizer::Optimizer(::torch::nn::Module& root, const Routing& routing, const OptimizerOptions& options)
    : sherd::Optimizer(detail::sharded_model_of(root, kOptimizer).root(), routing, options) {
  detail::model_of(root).note_user_of_gradients();
}

std::shared_ptr<const GradientStats> clip_grad_norm(::torch::nn::Module& root, double max_norm,
                                                    const ClipOptions& options) {
  return sherd::clip_grad_norm(detail::sharded_model_of(root, "sherd::torch::clip_grad_norm").root(),
                               max_norm, options);
}

GradientStats read_stats(::torch::nn::Module& root, const std::shared_ptr<const GradientStats>& stats) {
  return sherd::read_stats(detail::sharded_model_of(root, "sherd::torch::read_stats").root(), stats);
}

}  // namespace sherd::torch
