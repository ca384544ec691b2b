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

/// Name under which the child module is registered.
inline constexpr const char* kAttached = "_sherd";

/// Child of every module that wrap() or root_of() was called with. Libtorch applies to(), clone() and
/// zero_grad() to children. This child refuses the first two and records the third.
class Attached final : public ::torch::nn::Module {
 public:
  Attached() : ::torch::nn::Module("sherd::torch") {}

  std::optional<Wrap> noted;      // set by wrap(); cleared when the root is sharded
  std::shared_ptr<UnitUse> unit;  // unit of a sharded tree
  std::shared_ptr<Model> model;   // set at the root
  bool recomputed = false;        // set by recompute_calls()

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

/// Returns the module's Attached; null without one.
Attached* attached_to(const ::torch::nn::Module& module);
/// Returns the module's Attached; creates it if it is missing.
Attached& attach_to(::torch::nn::Module& module);
/// Makes it the first child. Libtorch applies an operation to children in their order. sherd must refuse an
/// operation before other children are moved or converted. For sharded modules only: clone() of an unsharded
/// Sequential counts children.
void put_first(::torch::nn::Module& module);

/// Returns the model with this root; describes it if it is new. @throws InvalidArgument as root_of() does.
Model& model_of(::torch::nn::Module& root);
/// Returns the model with this root, which must be sharded. @throws InvalidArgument, beginning with `what`,
/// otherwise.
Model& sharded_model_of(::torch::nn::Module& root, const char* what);

}  // namespace sherd::torch::detail
