// Differences between CPUs and GPUs where libtorch's operations meet sherd's streams.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include <sherd/comm/core/communicator.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd::torch::detail {

/// A rank's device for libtorch. On a CPU libtorch's operations finish before they return and are in no
/// stream. Waiting for the compute stream orders them among its operations. On a GPU both are work on CUDA
/// streams. The compute stream and events order them on the device, and no thread waits.
class TorchDevice {
 public:
  /// @throws NotCompiled for a GPU in builds without SHERD_TORCH_CUDA.
  static std::shared_ptr<TorchDevice> of(Device& device);
  virtual ~TorchDevice() = default;
  TorchDevice(const TorchDevice&) = delete;
  TorchDevice& operator=(const TorchDevice&) = delete;

  /// Returns libtorch's name of the device where the tensors' memory is.
  at::Device place() const { return place_; }
  /// Checks that the ranks of `world` can use their devices for libtorch together. Collective. @throws
  /// NotSupported on all.
  virtual void require_usable(Communicator& /*world*/) const {}

  /// Orders this thread's next operations after all that was queued on the compute stream. On a CPU this
  /// holds for any operation: all queued work is done. On a GPU it holds for libtorch's operations in that
  /// stream: all queued work is issued, not done. @throws the error of a failed stream.
  virtual void join() = 0;
  /// Orders later work of the compute stream after libtorch's work so far in this thread's current stream.
  virtual void before_compute() const {}
  /// Orders later work of this thread's current stream after the issued work of the compute stream.
  virtual void after_compute() const {}

  /// Scope that orders this thread's operations of libtorch in the compute stream: after the thread's earlier
  /// work and before its later work. It ends on the thread that began it. Scopes nest.
  class OnCompute {
   public:
    OnCompute() = default;
    virtual ~OnCompute() = default;
    OnCompute(const OnCompute&) = delete;
    OnCompute& operator=(const OnCompute&) = delete;
    /// Marks a tensor that was made before the scope and is used in it (takes), or the reverse (gives). Its
    /// memory is not reused while that use is queued. @throws InvalidArgument for a tensor that needs a
    /// gradient and is on another device.
    virtual void takes(const at::Tensor& /*tensor*/) const {}
    virtual void gives(const at::Tensor& /*tensor*/) const {}
  };
  virtual std::unique_ptr<OnCompute> on_compute() const { return std::make_unique<OnCompute>(); }

  /// Copies `values` to memory of the device. They are dense, on the CPU, and have as many bytes. No queued
  /// operation of the compute stream may use the memory (a GPU allows it).
  virtual void write(const Tensor& memory, const at::Tensor& values) const = 0;

 protected:
  explicit TorchDevice(at::Device place) : place_(place) {}

 private:
  at::Device place_;
};

/// Returns a GPU's device (torch_cuda.cpp, or no_torch_cuda.cpp).
std::shared_ptr<TorchDevice> torch_cuda_device(Device& device);

}  // namespace sherd::torch::detail
