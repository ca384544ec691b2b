// sherd's data attached to a libtorch module: a child module of its own kind.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <ostream>

#include <sherd/fsdp/wrap.h>

namespace sherd::torch::detail {

class Model;
class UnitUse;

/// The name under which it is registered.
inline constexpr const char* kAttached = "_sherd";

/// Registered as a child of every module that wrap() or root_of() has seen. Libtorch applies to(), clone()
/// and zero_grad() to children: this child refuses the first two and records the third.
class Attached final : public ::torch::nn::Module {
 public:
  Attached() : ::torch::nn::Module("sherd::torch") {}

  std::optional<Wrap> noted;      // by wrap(), until the root is sharded
  std::shared_ptr<UnitUse> unit;  // of a sharded tree
  std::shared_ptr<Model> model;   // of its root
  bool recomputed = false;        // by recompute_calls()

  void to(::torch::Device device, ::torch::Dtype dtype, bool non_blocking) override;
  void to(::torch::Dtype dtype, bool non_blocking) override;
  void to(::torch::Device device, bool non_blocking) override;
  void zero_grad(bool set_to_none) override;
  std::shared_ptr<::torch::nn::Module> clone(const std::optional<::torch::Device>& device) const override;
  bool is_serializable() const override { return false; }
  void pretty_print(std::ostream& stream) const override;

 private:
  void refuse(const char* what) const;
};

/// Null when the module has none.
Attached* attached_to(const ::torch::nn::Module& module);
/// The module's, made now if it has none.
Attached& attach_to(::torch::nn::Module& module);
/// Makes it the first child. Libtorch hands what is done to a module on to its children in their order, and what sherd
/// refuses is to be refused before others have been moved or converted. Only of modules that are sharded: clone() of a
/// Sequential that is not counts children.
void put_first(::torch::nn::Module& module);

/// The model whose root this is, described now if it was not. @throws InvalidArgument as root_of() does.
Model& model_of(::torch::nn::Module& root);
/// The same of a root that is sharded. @throws InvalidArgument, which begins with `what`, for others.
Model& sharded_model_of(::torch::nn::Module& root, const char* what);

}  // namespace sherd::torch::detail
