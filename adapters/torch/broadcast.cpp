#include <sherd/torch/broadcast.h>

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <sherd/comm/core/require_equal.h>
#include <sherd/kernels/random/random.h>
#include <sherd/torch/convert.h>
#include <sherd/torch/detail/model.h>
#include <sherd/torch/device.h>

namespace sherd::torch {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

void broadcast(const NamedTensors& tensors, const DeviceMesh& mesh) {
  Communicator& world = *mesh.world();
  Stream& compute = world.device().compute();
  const Serving serving(world, Purpose("sherd::torch: values of rank 0"));
  uint64_t digest = 0;
  for (const auto& [name, t] : tensors)
    digest =
        hash64(digest, fmt::format("{} {} {}", name, c10::toString(t.scalar_type()), c10::str(t.sizes())));
  require_equal(
      world, compute, digest,
      "sherd::torch: values of rank 0: names, shapes or dtypes of parameters and buffers differ between "
      "ranks; make the same modules on every rank");
  const at::NoGradGuard no_grad;
  for (const auto& [name, t] : tensors) {
    if (t.numel() == 0) continue;
    const at::Tensor flat = t.detach().to(device_of(world.device())).contiguous().reshape({-1});
    // As bytes: any dtype, and the bits of NaN.
    world.broadcast(compute, from_torch(flat.view(at::kByte), world.device()), 0);
    compute.synchronize();
    if (flat.const_data_ptr() != t.const_data_ptr()) t.detach().copy_(flat.view(t.sizes()));
  }
}

NamedTensors buffers_of(const ::torch::nn::Module& module) {
  NamedTensors all;
  for (const auto& b : module.named_buffers())
    if (b.value().defined() && !b.value().is_meta()) all.emplace_back(b.key(), b.value());
  return all;
}

}  // namespace

void broadcast_from_rank_0(::torch::nn::Module& module, const DeviceMesh& mesh) {
  NamedTensors all;
  for (const auto& p : module.named_parameters()) {
    if (detail::unit_of_parameter(p.value()))
      throw InvalidArgument(fmt::format(
          "sherd::torch::broadcast_from_rank_0: parameter '{}' is sharded, and its values are the "
          "same for all ranks; call it before fully_shard()",
          p.key()));
    if (p.value().defined() && !p.value().is_meta()) all.emplace_back(p.key(), p.value());
  }
  for (auto& b : buffers_of(module)) all.push_back(std::move(b));
  broadcast(all, mesh);
}

void broadcast_buffers(::torch::nn::Module& module, const DeviceMesh& mesh) {
  broadcast(buffers_of(module), mesh);
}

}  // namespace sherd::torch
