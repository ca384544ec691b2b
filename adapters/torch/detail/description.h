// Description of a tree of libtorch modules for sherd.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/module_base.h>

namespace sherd::torch::detail {

/// A module of the tree for sherd: names, parameters and children; without a forward.
class Mirror final : public ModuleBase {
 public:
  using ModuleBase::buffer;
  using ModuleBase::child;
  using ModuleBase::param;
  using ModuleBase::tie;  // for parameters and buffers
};

/// Description of one tree: parameters, buffers and the module of each. It does not change the modules'
/// tensors.
class Description {
 public:
  /// @throws InvalidArgument naming all unsupported parameters and buffers.
  explicit Description(::torch::nn::Module& root);

  Mirror& root() const { return *mirrors_.front(); }
  /// Returns the description of a module; null for modules outside this tree.
  Mirror* mirror_of(const ::torch::nn::Module& module) const;
  /// Returns each parameter and buffer once, in the order of named_parameters().
  const std::vector<std::pair<Parameter, at::Tensor>>& parameters() const { return parameters_; }
  const std::vector<std::pair<Buffer, at::Tensor>>& buffers() const { return buffers_; }
  /// Returns the described parameter of a tensor; null for other tensors.
  const Parameter* parameter_of(const at::Tensor& tensor) const;
  const Buffer* buffer_of(const at::Tensor& tensor) const;
  /// @throws InvalidArgument when the tree has changed since it was described.
  void require_unchanged(::torch::nn::Module& root) const;

 private:
  Mirror& describe(::torch::nn::Module& module, const std::string& prefix);
  void describe_parameter(Mirror& mirror, const std::string& name, const std::string& full,
                          const at::Tensor& tensor, const std::vector<std::string>& stacked);
  /// Returns the first described parameter that shares elements with this one; null without one.
  const Parameter* overlapping(const at::Tensor& tensor) const;
  void describe_buffer(Mirror& mirror, const std::string& name, const std::string& full,
                       const at::Tensor& tensor);

  std::vector<std::unique_ptr<Mirror>> mirrors_;  // the root comes first and is destroyed first
  std::map<const ::torch::nn::Module*, Mirror*> mirror_of_;
  std::map<const at::TensorImpl*, Parameter> known_;
  std::vector<std::pair<Parameter, at::Tensor>> parameters_;
  std::vector<std::pair<Buffer, at::Tensor>> buffers_;
  std::vector<std::string> wrong_;
  std::string tree_;  // text that list() made of the tree
};

/// Returns libtorch's name of a dtype.
at::ScalarType scalar_type_of(DType dtype);

}  // namespace sherd::torch::detail
