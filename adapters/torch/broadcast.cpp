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

// A larger tensor is a message of its own.
constexpr size_t kMessageBytes = size_t{4} << 20;

/// Tensors of one broadcast, as bytes: any dtypes, and the bits of NaN.
class Message {
 public:
  void add(const at::Tensor& tensor, const at::Device& place) {
    const at::Tensor flat = tensor.detach().to(place).contiguous().reshape({-1});
    bytes_ += tensor.nbytes();
    parts_.push_back({tensor, flat, flat.view(at::kByte)});
  }
  size_t bytes() const { return bytes_; }
  /// Copies rank 0's values to the tensors, and drops them.
  void send(Communicator& world) {
    if (parts_.empty()) return;
    std::vector<at::Tensor> all;
    for (const Part& part : parts_) all.push_back(part.bytes);
    const at::Tensor packed = all.size() == 1 ? all.front() : at::cat(all);
    Stream& compute = world.device().compute();
    world.broadcast(compute, from_torch(packed, world.device()), 0);
    compute.synchronize();
    int64_t begin = 0;
    for (const Part& part : parts_) {
      const int64_t size = part.bytes.numel();
      if (all.size() > 1) part.bytes.copy_(packed.slice(0, begin, begin + size));
      begin += size;
      if (part.flat.const_data_ptr() != part.tensor.const_data_ptr())
        part.tensor.detach().copy_(part.flat.view(part.tensor.sizes()));
    }
    parts_.clear();
    bytes_ = 0;
  }

 private:
  struct Part {
    at::Tensor tensor, flat, bytes;  // `flat`: dense, on the ranks' device; `bytes`: the same memory
  };
  std::vector<Part> parts_;
  size_t bytes_ = 0;
};

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
  Message message;
  for (const auto& [name, t] : tensors) {
    if (t.numel() == 0) continue;
    if (message.bytes() + t.nbytes() > kMessageBytes) message.send(world);
    message.add(t, device_of(world.device()));
  }
  message.send(world);
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
