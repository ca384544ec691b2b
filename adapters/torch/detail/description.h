// A tree of libtorch's modules, described to sherd.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/module_base.h>

namespace sherd::torch::detail {

/// A module of the tree as sherd sees it: names, parameters, children, and no forward.
class Mirror final : public ModuleBase {
 public:
  using ModuleBase::buffer;
  using ModuleBase::child;
  using ModuleBase::param;
  using ModuleBase::tie;  // parameters and buffers
};

/// Parameters, buffers and owner of one tree, as described to sherd. The modules' tensors are not touched.
class Description {
 public:
  /// @throws InvalidArgument naming all parameters and buffers that cannot be.
  explicit Description(::torch::nn::Module& root);

  Mirror& root() const { return *mirrors_.front(); }
  /// Null for modules that are not of this tree.
  Mirror* mirror_of(const ::torch::nn::Module& module) const;
  /// Each parameter and buffer once, in the order of named_parameters().
  const std::vector<std::pair<Parameter, at::Tensor>>& parameters() const { return parameters_; }
  const std::vector<std::pair<Buffer, at::Tensor>>& buffers() const { return buffers_; }
  /// Null for tensors that are none of these.
  const Parameter* parameter_of(const at::Tensor& tensor) const;
  const Buffer* buffer_of(const at::Tensor& tensor) const;
  /// @throws InvalidArgument when the tree is another now than it was described.
  void require_unchanged(::torch::nn::Module& root) const;

 private:
  Mirror& describe(::torch::nn::Module& module, const std::string& prefix);
  void describe_parameter(Mirror& mirror, const std::string& name, const std::string& full,
                          const at::Tensor& tensor, const std::vector<std::string>& stacked);
  /// The first described parameter that shares some or all of this one's elements; null without one.
  const Parameter* overlapping(const at::Tensor& tensor) const;
  void describe_buffer(Mirror& mirror, const std::string& name, const std::string& full,
                       const at::Tensor& tensor);

  std::vector<std::unique_ptr<Mirror>> mirrors_;  // the root first, which goes first
  std::map<const ::torch::nn::Module*, Mirror*> mirror_of_;
  std::map<const at::TensorImpl*, Parameter> known_;
  std::vector<std::pair<Parameter, at::Tensor>> parameters_;
  std::vector<std::pair<Buffer, at::Tensor>> buffers_;
  std::vector<std::string> wrong_;
  std::string tree_;  // what was described, in words
};

/// The like of a dtype of sherd's.
at::ScalarType scalar_type_of(DType dtype);

}  // namespace sherd::torch::detail
