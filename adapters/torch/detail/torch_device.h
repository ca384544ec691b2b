// Differences between CPUs and GPUs where libtorch's operations meet sherd's streams.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include <sherd/comm/core/communicator.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd::torch::detail {

/// A rank's device for libtorch. On a CPU libtorch's operations are done when they return, in no stream, and are put
/// between those of the compute stream by waiting for it. On a GPU both are work on CUDA streams: they are put in order
/// on the device, by the compute stream itself and by events, and no thread waits for the device.
class TorchDevice {
 public:
  /// @throws NotCompiled for a GPU in builds without SHERD_TORCH_CUDA.
  static std::shared_ptr<TorchDevice> of(Device& device);
  virtual ~TorchDevice() = default;
  TorchDevice(const TorchDevice&) = delete;
  TorchDevice& operator=(const TorchDevice&) = delete;

  /// Where tensors lie whose memory is the device's.
  at::Device place() const { return place_; }
  /// Whether ranks of `world` can use their devices for libtorch together. Collective. @throws NotSupported on all.
  virtual void require_usable(Communicator& /*world*/) const {}

  /// What this thread does next in the order of the compute stream comes behind all that was queued there before: on a
  /// CPU that is whatever it does, and all is done; on a GPU it is what libtorch puts into that stream, and all was
  /// issued, not done. @throws what the stream has failed with.
  virtual void join() = 0;
  /// The compute stream comes, from now on, behind what libtorch has put into this thread's current stream.
  virtual void before_compute() const {}
  /// This thread's current stream comes, from now on, behind what the compute stream was given and has issued.
  virtual void after_compute() const {}

  /// While it lives, what libtorch does on this thread is in the order of the compute stream: behind what the thread has
  /// done before, and before what it does afterwards. It ends on the thread that began it. Scopes nest.
  class OnCompute {
   public:
    OnCompute() = default;
    virtual ~OnCompute() = default;
    OnCompute(const OnCompute&) = delete;
    OnCompute& operator=(const OnCompute&) = delete;
    /// The tensor was made before the scope and is used in it, resp. the other way round: its memory is not given to
    /// others while that use is queued. @throws InvalidArgument for a tensor that needs a gradient and lies elsewhere
    /// than the device.
    virtual void takes(const at::Tensor& /*tensor*/) const {}
    virtual void gives(const at::Tensor& /*tensor*/) const {}
  };
  virtual std::unique_ptr<OnCompute> on_compute() const { return std::make_unique<OnCompute>(); }

  /// Copies `values`, dense ones on the CPU of as many bytes, to memory of the device that nothing queued on the compute
  /// stream uses (a GPU allows such use).
  virtual void write(const Tensor& memory, const at::Tensor& values) const = 0;

 protected:
  explicit TorchDevice(at::Device place) : place_(place) {}

 private:
  at::Device place_;
};

/// Of a GPU (torch_cuda.cpp, or its twin in builds without it).
std::shared_ptr<TorchDevice> torch_cuda_device(Device& device);

}  // namespace sherd::torch::detail
