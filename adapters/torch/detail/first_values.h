// First values of parameters and buffers that were described on the meta device.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <sherd/torch/reset_parameters.h>

namespace sherd::torch::detail {

/// Whether reset_parameters() knows this module.
bool can_reset(::torch::nn::Module& module);

/// The modules of a tree that have parameters or buffers on the meta device. Values are made for one module at a
/// time: its tensors, keeping their identity, are on the CPU meanwhile, and on the meta device again afterwards.
class FirstValues {
 public:
  /// `init`: null for reset_parameters().
  FirstValues(::torch::nn::Module& root, ParameterInit init, uint64_t seed);
  bool empty() const { return groups_.empty(); }
  /// @throws InvalidArgument naming all parameters and buffers that would get no values.
  void require_known() const;
  /// Calls take(tensor) for each of these parameters and buffers while it has values; a tied one comes once, with those
  /// of the first module that has it, as if the modules had been made and then tied.
  /// @throws InvalidArgument naming all parameters and buffers of which elements were left unwritten.
  void make(const std::function<void(const at::Tensor&)>& take) const;

 private:
  struct Member {
    std::string name;
    ::torch::nn::Module* module = nullptr;
    /// Registered in it, on the meta device: {name, tensor}.
    std::vector<std::pair<std::string, at::Tensor>> tensors = {};
    /// Below a torch::nn::Transformer.
    bool transformer = false;
  };
  /// Modules whose values are made together, inner ones first.
  using Group = std::vector<Member>;

  void fill(const Member& member) const;
  ParameterInit init_;
  uint64_t seed_;
  std::vector<Group> groups_;
};

}  // namespace sherd::torch::detail
