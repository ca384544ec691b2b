#include <sherd/torch/fully_shard.h>

#include <fmt/format.h>

#include <sherd/torch/call.h>
#include <sherd/torch/detail/attached.h>
#include <sherd/torch/detail/model.h>

namespace sherd::torch {
namespace detail {

Attached* attached_to(const ::torch::nn::Module& module) {
  for (const auto& child : module.children())
    if (auto* attached = dynamic_cast<Attached*>(child.get())) return attached;
  return nullptr;
}

Attached& attach_to(::torch::nn::Module& module) {
  if (Attached* there = attached_to(module)) return *there;
  return *module.register_module(kAttached, std::make_shared<Attached>());
}

void put_first(::torch::nn::Module& module) {
  const auto children = module.named_children();
  for (const auto& child : children) module.unregister_module(child.key());
  for (const bool attached : {true, false})
    for (const auto& child : children)
      if ((dynamic_cast<const Attached*>(child.value().get()) != nullptr) == attached)
        module.register_module(child.key(), child.value());
}

void Attached::refuse(const char* what) const {
  if (!unit) return;
  throw InvalidArgument(
      fmt::format("Module::{} of unit '{}', whose parameters are sharded: move, convert or copy the module "
                  "before fully_shard(); the "
                  "dtype to compute in is FullyShardOptions::compute_dtype",
                  what, unit->unit().name()));
}

void Attached::to(::torch::Device, ::torch::Dtype, bool) { refuse("to()"); }
void Attached::to(::torch::Dtype, bool) { refuse("to()"); }
void Attached::to(::torch::Device, bool) { refuse("to()"); }

// Only at the root: gradients of a part of a model are not known separately.
void Attached::zero_grad(bool) {
  if (!model || !model->sharded()) return;
  model->require_user_of_gradients();
  sherd::zero_grad(model->root());
}

std::shared_ptr<::torch::nn::Module> Attached::clone(const std::optional<::torch::Device>&) const {
  refuse("clone()");
  return std::make_shared<Attached>();
}

void refuse_clone(const ::torch::nn::Module& module) {
  if (const Attached* attached = attached_to(module))
    attached->clone(std::nullopt);  // throws for a sharded module
  throw NotSupported(
      fmt::format("Module::clone() of '{}', a module wrapped by sherd: libtorch would make a plain module of "
                  "it; make a second "
                  "one and copy its parameters",
                  module.name()));
}

void Attached::pretty_print(std::ostream& stream) const {
  if (unit) {
    stream << "sherd::torch unit '" << unit->unit().name() << "'";
  } else {
    stream << "sherd::torch";
  }
}

namespace {

// Checks a module that is to become a root or a unit.
void require_none_sharded(const ::torch::nn::Module& module, const char* what) {
  for (const auto& p : module.named_parameters())
    if (const auto unit = unit_of_parameter(p.value()))
      throw InvalidArgument(
          fmt::format("sherd::torch::{} of module '{}': its parameter '{}' belongs to unit '{}' of a tree "
                      "that is sharded already; note inner "
                      "modules by wrap() (or fully_shard<BlockImpl>()), then call fully_shard() once, of the "
                      "root of the whole tree",
                      what, module.name(), p.key(), unit->unit().name()));
}

}  // namespace

Model& model_of(::torch::nn::Module& root) {
  Attached* const there = attached_to(root);
  if (there != nullptr && there->unit && !there->unit->unit().attached())
    there->unit.reset();  // its root no longer exists
  if (there == nullptr || !there->unit) require_none_sharded(root, "root_of");
  Attached& attached = attach_to(root);
  if (attached.unit && !attached.model)
    throw InvalidArgument(fmt::format(
        "sherd::torch: the module of unit '{}' is part of a tree that is sharded already; its root is meant",
        attached.unit->unit().name()));
  if (!attached.model) attached.model = std::make_shared<Model>(root);
  return *attached.model;
}

Model& sharded_model_of(::torch::nn::Module& root, const char* what) {
  const Attached* attached = attached_to(root);
  if (attached != nullptr && attached->unit && !attached->model) model_of(root);  // throws the reason
  if (attached == nullptr || !attached->model || !attached->model->sharded())
    throw InvalidArgument(fmt::format(
        "{}: the model is not sharded yet; call sherd::torch::fully_shard() or data_parallel() of it before",
        what));
  return *attached->model;
}

}  // namespace detail

void wrap(::torch::nn::Module& module, const DeviceMesh& mesh, const FullyShardOptions& options) {
  if (detail::attached_to(module) == nullptr) detail::require_none_sharded(module, "wrap");
  detail::Attached& attached = detail::attach_to(module);
  if (attached.unit && attached.unit->unit().attached())
    throw InvalidArgument(
        fmt::format("sherd::torch::wrap: the module belongs to unit '{}' of a tree that is sharded already; "
                    "wrap inner modules "
                    "before fully_shard() of the root",
                    attached.unit->unit().name()));
  attached.unit.reset();
  attached.noted = Wrap{mesh, options};
}

void fully_shard(::torch::nn::Module& root, const DeviceMesh& mesh, const FullyShardOptions& options,
                 const RootOptions& root_options, const ParameterInit& init) {
  detail::model_of(root).shard(root, {mesh, options, root_options}, init);
}

void data_parallel(::torch::nn::Module& root, const DeviceMesh& mesh, FullyShardOptions options,
                   const RootOptions& root_options, const ParameterInit& init) {
  options.strategy = Strategy::no_shard;
  for (const auto& module : root.modules(/*include_self=*/false))
    if (detail::Attached* const attached = detail::attached_to(*module);
        attached != nullptr && attached->noted)
      attached->noted->options.strategy = Strategy::no_shard;
  fully_shard(root, mesh, options, root_options, init);
}

ModuleBase& root_of(::torch::nn::Module& root) { return detail::model_of(root).root(); }

void reset_step(::torch::nn::Module& root) { sherd::reset_step(root_of(root)); }

}  // namespace sherd::torch
