#include <sherd/torch/gradients.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include <ATen/ATen.h>
#include <sherd/comm/core/require_equal.h>
#include <sherd/fsdp/group.h>
#include <sherd/torch/detail/attached.h>
#include <sherd/torch/detail/model.h>
#include <sherd/torch/detail/tensor_memory.h>

namespace sherd::torch {
namespace {

/// Calls f(parameter, this rank's gradient) once gradients are final and the compute stream has them.
template <class F>
detail::Model& for_each_gradient(::torch::nn::Module& root, const char* what, F f) {
  detail::Model& model = detail::sharded_model_of(root, what);
  ShardRuntime& runtime = model.runtime();
  runtime.require_gradients(what);
  runtime.wait_gradients();
  model.join();
  const at::NoGradGuard no_grad;
  const auto on_compute = model.device().on_compute();
  for (const auto& [name, parameter] : model.root().named_parameters()) {
    if (!parameter.trainable() || parameter.frozen()) continue;
    const Tensor memory = parameter.grad_shard();
    const at::ScalarType type = memory.dtype() == DType::f32 ? at::kFloat : at::kBFloat16;
    f(parameter, detail::view_of(memory, {memory.numel()}, type, model.device().place()).to(at::kFloat));
  }
  return model;
}

// Returns whether this rank counts: one of the ranks that hold the same elements does.
bool counts(const Parameter& parameter, int rank) {
  const ParamGroup& group = parameter.group();
  return group.replicated() ? rank == 0 : group.axes().holders_of(parameter.tensor_shard()).index == 0;
}

}  // namespace

std::vector<GradientPiece> gradient_pieces(::torch::nn::Module& root) {
  std::vector<GradientPiece> all;
  for_each_gradient(root, "sherd::torch::gradient_pieces", [&](const Parameter& p, const at::Tensor& values) {
    all.push_back({p.name(), p.shard_range(), p.global_boxes(p.shard_range()), values.clone()});
  });
  return all;
}

std::vector<std::pair<std::string, double>> gradient_norms(::torch::nn::Module& root) {
  constexpr const char* kWhat = "sherd::torch::gradient_norms";
  Communicator& world = *detail::sharded_model_of(root, kWhat).runtime().mesh().world();
  std::vector<std::pair<std::string, double>> norms;
  std::vector<uint64_t> mine;
  for_each_gradient(root, kWhat, [&](const Parameter& p, const at::Tensor& values) {
    norms.emplace_back(p.name(), 0.0);
    const bool here = counts(p, world.rank());
    mine.push_back(
        std::bit_cast<uint64_t>(here ? values.to(at::kDouble).square().sum().item<double>() : 0.0));
  });
  const Serving serving(world, Purpose(kWhat));
  const std::vector<uint64_t> all = gather_values(world, world.device().compute(), mine);
  for (size_t i = 0; i < norms.size(); ++i) {
    double sum = 0;
    for (size_t r = 0; r < static_cast<size_t>(world.size()); ++r)
      sum += std::bit_cast<double>(all[r * norms.size() + i]);
    norms[i].second = std::sqrt(sum);
  }
  return norms;
}

}  // namespace sherd::torch
