#include <sherd/torch/detail/first_values.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/transformer.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <sherd/base/error.h>
#include <sherd/kernels/random/random.h>
#include <sherd/torch/detail/can_reset.h>
#include <sherd/torch/detail/tensor_memory.h>
#include <sherd/torch/generator.h>

namespace sherd::torch::detail {
namespace {

namespace nn = ::torch::nn;

std::string full_name(const std::string& module, const std::string& name) {
  return module.empty() ? name : module + "." + name;
}

std::vector<std::pair<std::string, at::Tensor>> meta_tensors_of(const nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> found;
  for (const auto& p : module.named_parameters(/*recurse=*/false))
    if (p.value().is_meta()) found.emplace_back(p.key(), p.value());
  for (const auto& b : module.named_buffers(/*recurse=*/false))
    if (b.value().defined() && b.value().is_meta()) found.emplace_back(b.key(), b.value());
  return found;
}

/// Scope in which tensors of the meta device have memory on the CPU.
class Materialised {
 public:
  void add(const at::Tensor& tensor) {
    if (!tensor.is_meta()) return;  // the same tensor under another name
    const auto options = at::TensorOptions(tensor.scalar_type());
    const at::Tensor meta = at::empty(tensor.sizes(), options.device(at::kMeta));
    const at::Tensor memory = at::empty(tensor.sizes(), options.device(at::kCPU));
    // Unwritten elements keep this value. Integers use the second fill value instead.
    if (tensor.is_floating_point()) {
      memory.fill_(std::numeric_limits<double>::quiet_NaN());
    } else {
      memory.zero_();
    }
    become(tensor, memory);
    tensors_.emplace_back(tensor, meta);
  }
  Materialised() = default;
  ~Materialised() {
    for (const auto& [tensor, meta] : tensors_) become(tensor, meta);
  }
  Materialised(const Materialised&) = delete;
  Materialised& operator=(const Materialised&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
};

}  // namespace

FirstValues::FirstValues(nn::Module& root, ParameterInit init, uint64_t seed)
    : init_(std::move(init)), seed_(seed) {
  std::set<const nn::Module*> seen;
  const std::function<void(nn::Module&, const std::string&, bool)> visit =
      [&](nn::Module& module, const std::string& name, bool transformer) {
        if (!seen.insert(&module).second) return;
        transformer = transformer || dynamic_cast<nn::TransformerImpl*>(&module) != nullptr;
        Group group;
        // It also writes to its output projection.
        if (auto* attention = dynamic_cast<nn::MultiheadAttentionImpl*>(&module)) {
          nn::Module& inner = *attention->out_proj;
          if (seen.insert(&inner).second)
            group.push_back({full_name(name, "out_proj"), &inner, meta_tensors_of(inner), transformer});
        }
        group.push_back({name, &module, meta_tensors_of(module), transformer});
        std::erase_if(group, [](const Member& m) { return m.tensors.empty(); });
        if (!group.empty()) groups_.push_back(std::move(group));
        for (const auto& child : module.named_children())
          visit(*child.value(), full_name(name, child.key()), transformer);
      };
  visit(root, "", false);
}

void FirstValues::require_known() const {
  if (init_) return;
  std::vector<std::string> unknown;
  for (const Group& group : groups_)
    for (const Member& m : group)
      if (!can_reset(*m.module))
        for (const auto& [name, tensor] : m.tensors) unknown.push_back(full_name(m.name, name));
  if (unknown.empty()) return;
  throw InvalidArgument(fmt::format(
      "sherd::torch::fully_shard: on the meta device, without a source of first values: {}; let their "
      "modules be sherd::torch::Resettable, give fully_shard() a ParameterInit, or make them on the CPU",
      fmt::join(unknown, ", ")));
}

void FirstValues::fill(const Member& member) const {
  const ThreadGenerator random(hash64(seed_, member.name));
  const at::NoGradGuard no_grad;
  if (init_) return init_(*member.module);
  reset_parameters(*member.module);
  if (!member.transformer) return;
  // Last step of Transformer's constructor, for all matrices below it.
  for (const auto& [name, tensor] : member.tensors)
    if (tensor.requires_grad() && tensor.dim() > 1) nn::init::xavier_uniform_(tensor);
}

void FirstValues::make(const std::function<void(const at::Tensor&)>& take) const {
  std::set<const at::TensorImpl*> taken;
  std::vector<std::string> unwritten;
  for (const Group& group : groups_) {
    Materialised values;
    for (const Member& m : group)
      for (const auto& [name, tensor] : m.tensors) values.add(tensor);
    for (const Member& m : group) fill(m);
    // No integer value can mark an unwritten element. Integers are filled twice, the second time over ones.
    std::vector<std::pair<at::Tensor, at::Tensor>> twice;
    for (const Member& m : group)
      for (const auto& [name, tensor] : m.tensors)
        if (!tensor.is_floating_point()) twice.emplace_back(tensor, tensor.clone());
    for (const auto& [tensor, first] : twice) tensor.fill_(1);
    if (!twice.empty())
      for (const Member& m : group) fill(m);
    const auto differs = [&](const at::Tensor& tensor) {
      return std::any_of(twice.begin(), twice.end(),
                         [&](const auto& t) { return t.first.is_same(tensor) && !tensor.equal(t.second); });
    };
    for (const Member& m : group)
      for (const auto& [name, tensor] : m.tensors) {
        if (!taken.insert(tensor.unsafeGetTensorImpl()).second) continue;
        if (tensor.is_floating_point() ? tensor.isnan().any().item<bool>() : differs(tensor))
          unwritten.push_back(full_name(m.name, name));
        take(tensor);
      }
  }
  if (!unwritten.empty())
    throw InvalidArgument(fmt::format(
        "sherd::torch::fully_shard: elements of parameters or buffers from the meta device were not written, "
        "or to NaN: {}; what gives a module its first values has to write all of them",
        fmt::join(unwritten, ", ")));
}

}  // namespace sherd::torch::detail
