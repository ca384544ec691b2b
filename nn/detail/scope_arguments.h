// Arguments of recomputed scopes that rest on the host between forward and backward.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include <sherd/kernels/device/device.h>
#include <sherd/nn/var.h>

namespace sherd::nn::detail {

/// Streams of the copies, two for each device.
class ArgumentStreams {
 public:
  struct Pair {
    std::unique_ptr<Stream> out, in;
  };
  /// Returns those of a device, made by the first call.
  Pair& of(Device& device);

 private:
  std::map<Device*, Pair> pairs_;
};

/// Arguments of one scope that backward gives a gradient. Each function queues its operations and returns. The device's memory is
/// written and read in the order of events alone: copies run on two streams beside compute().
class ScopeArguments {
 public:
  /// @param values of one device, which the caller keeps at their place; all others than those with a gradient are ignored
  explicit ScopeArguments(const std::vector<Var*>& values);
  /// Makes compute() wait for pending copies.
  ~ScopeArguments();
  ScopeArguments(const ScopeArguments&) = delete;
  ScopeArguments& operator=(const ScopeArguments&) = delete;

  bool empty() const { return kept_.empty(); }
  /// Begins to copy the arguments to the host, once compute() has made them.
  void store(ArgumentStreams& streams);
  /// Drops the device's memory of stored arguments; what compute() runs from now on may use it.
  void drop();
  /// Begins to fetch dropped arguments; without effect on others.
  void fetch(ArgumentStreams& streams);
  /// Makes compute() wait for fetch().
  void wait();

 private:
  struct Kept {
    Var* value;
    Tensor host, device;
  };
  void wait_for(Event& event);

  std::vector<Kept> kept_;
  Device* device_ = nullptr;
  Event stored_, fetched_;
  bool dropped_ = false;
};

}  // namespace sherd::nn::detail
