// Initial values of parameters and buffers on the meta device.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <sherd/torch/reset_parameters.h>

namespace sherd::torch::detail {

/// Modules of a tree with parameters or buffers on the meta device. Values are made for one module at a time:
/// its tensors keep their identity, are on the CPU meanwhile, and return to the meta device.
class FirstValues {
 public:
  /// `init`: null for reset_parameters().
  FirstValues(::torch::nn::Module& root, ParameterInit init, uint64_t seed);
  bool empty() const { return groups_.empty(); }
  /// @throws InvalidArgument naming all parameters and buffers that no function initializes.
  void require_known() const;
  /// Calls take(tensor) for each of these parameters and buffers while it has values. A tied one is taken
  /// once, with the values of the first module that has it. This equals modules that are made and then tied.
  /// @throws InvalidArgument naming all parameters and buffers with unwritten elements.
  void make(const std::function<void(const at::Tensor&)>& take) const;

 private:
  struct Member {
    std::string name;
    ::torch::nn::Module* module = nullptr;
    /// {name, tensor} of those on the meta device that are registered in the module
    std::vector<std::pair<std::string, at::Tensor>> tensors = {};
    /// true below a torch::nn::Transformer
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
