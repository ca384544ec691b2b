#include <sherd/torch/detail/description.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/rnn.h>

#include <cstddef>
#include <optional>

#include <sherd/torch/detail/attached.h>

namespace sherd::torch::detail {
namespace {

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

// Returns sherd's dtype for memory of this type, in memory and in files.
std::optional<DType> dtype_of_memory(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::f32;
    case at::kBFloat16:
      return DType::bf16;
    case at::kHalf:
      return DType::f16;
    case at::kDouble:
      return DType::f64;
    case at::kInt:
      return DType::i32;
    case at::kLong:
      return DType::i64;
    case at::kByte:
    case at::kBool:
      return DType::u8;
    default:
      return std::nullopt;
  }
}

// Returns whether a tensor is on a device that ranks may have; fully_shard() checks the rank's own.
bool known_place(const at::Tensor& tensor) { return tensor.is_cpu() || tensor.is_cuda() || tensor.is_meta(); }

// Lists everything that a description depends on, in the order of reading.
void list(const ::torch::nn::Module& module, const std::string& prefix, std::string& tree) {
  for (const auto& p : module.named_parameters(/*recurse=*/false))
    tree += fmt::format("{} {} {}\n", join(prefix, p.key()),
                        static_cast<const void*>(p.value().unsafeGetTensorImpl()), p.value().requires_grad());
  for (const auto& b : module.named_buffers(/*recurse=*/false))
    tree += fmt::format("{} {}\n", join(prefix, b.key()),
                        static_cast<const void*>(b.value().unsafeGetTensorImpl()));
  for (const auto& child : module.named_children())
    if (dynamic_cast<const Attached*>(child.value().get()) == nullptr)
      list(*child.value(), join(prefix, child.key()), tree);
}

template <class... M>
bool is_one_of(const ::torch::nn::Module& module) {
  return ((dynamic_cast<const M*>(&module) != nullptr) || ...);
}

// Names the matrices that a module of libtorch stacks in one parameter; empty: it is one matrix.
std::vector<std::string> stacked_in(const ::torch::nn::Module& module, const std::string& name) {
  namespace nn = ::torch::nn;
  if (name == "in_proj_weight" && is_one_of<nn::MultiheadAttentionImpl>(module)) return {"q", "k", "v"};
  if (!name.starts_with("weight_ih") && !name.starts_with("weight_hh")) return {};
  if (is_one_of<nn::LSTMImpl, nn::LSTMCellImpl>(module)) return {"input", "forget", "cell", "output"};
  if (is_one_of<nn::GRUImpl, nn::GRUCellImpl>(module)) return {"reset", "update", "new"};
  return {};
}

}  // namespace

at::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return at::kFloat;
    case DType::bf16:
      return at::kBFloat16;
    case DType::f16:
      return at::kHalf;
    case DType::f64:
      return at::kDouble;
    case DType::i32:
      return at::kInt;
    case DType::i64:
      return at::kLong;
    case DType::u8:
      return at::kByte;
    case DType::i8:
      return at::kChar;
    case DType::f8_e4m3:
      return at::kFloat8_e4m3fn;
  }
  throw InvalidArgument("a dtype that libtorch has no like of");
}

Description::Description(::torch::nn::Module& root) {
  describe(root, "");
  if (!wrong_.empty()) throw InvalidArgument(fmt::format("sherd::torch: {}", fmt::join(wrong_, "; ")));
  list(root, "", tree_);
}

Mirror* Description::mirror_of(const ::torch::nn::Module& module) const {
  const auto found = mirror_of_.find(&module);
  return found == mirror_of_.end() ? nullptr : found->second;
}

const Parameter* Description::parameter_of(const at::Tensor& tensor) const {
  const auto found = known_.find(tensor.unsafeGetTensorImpl());
  return found == known_.end() ? nullptr : &found->second;
}

const Buffer* Description::buffer_of(const at::Tensor& tensor) const {
  for (const auto& [buffer, known] : buffers_)
    if (known.is_same(tensor)) return &buffer;
  return nullptr;
}

void Description::require_unchanged(::torch::nn::Module& root) const {
  std::string now;
  list(root, "", now);
  if (now == tree_) return;
  throw InvalidArgument(
      "sherd::torch: modules, parameters or requires_grad have changed since root_of() described the tree; "
      "call it when "
      "the model is complete");
}

Mirror& Description::describe(::torch::nn::Module& module, const std::string& prefix) {
  Mirror& mirror = *mirrors_.emplace_back(std::make_unique<Mirror>());
  // A module that is registered twice is described twice, with tied parameters. The first of them can be
  // wrapped.
  mirror_of_.try_emplace(&module, &mirror);
  for (const auto& p : module.named_parameters(/*recurse=*/false))
    describe_parameter(mirror, p.key(), join(prefix, p.key()), p.value(), stacked_in(module, p.key()));
  for (const auto& b : module.named_buffers(/*recurse=*/false))
    describe_buffer(mirror, b.key(), join(prefix, b.key()), b.value());
  for (const auto& child : module.named_children())
    if (dynamic_cast<Attached*>(child.value().get()) == nullptr)
      mirror.child(child.key(), describe(*child.value(), join(prefix, child.key())));
  return mirror;
}

void Description::describe_parameter(Mirror& mirror, const std::string& name, const std::string& full,
                                     const at::Tensor& tensor, const std::vector<std::string>& stacked) {
  if (const auto found = known_.find(tensor.unsafeGetTensorImpl()); found != known_.end()) {
    mirror.tie(name, found->second);
    return;
  }
  if (tensor.layout() != at::kStrided || !known_place(tensor)) {
    wrong_.push_back(
        fmt::format("parameter '{}' is not a dense tensor on the CPU, a GPU or the meta device; move the "
                    "module there first",
                    full));
    return;
  }
  if (tensor.scalar_type() != at::kFloat) {
    wrong_.push_back(fmt::format(
        "parameter '{}' is {}: master weights are f32, call module.to(torch::kFloat) first, and set "
        "FullyShardOptions::compute_dtype for the dtype to compute in",
        full, at::toString(tensor.scalar_type())));
    return;
  }
  if (!tensor.is_leaf()) {
    wrong_.push_back(
        fmt::format("parameter '{}' was computed from other tensors; register what it was made of", full));
    return;
  }
  if (const Parameter* other = overlapping(tensor)) {
    wrong_.push_back(
        fmt::format("parameter '{}' shares memory with '{}', but is another tensor; register one tensor in "
                    "both places to tie them",
                    full, other->name()));
    return;
  }
  Parameter p = mirror.param(name, Shape(tensor.sizes().begin(), tensor.sizes().end()), constant(0));
  if (!tensor.requires_grad()) p.freeze();
  if (!stacked.empty()) {
    const auto blocks = static_cast<int64_t>(stacked.size());
    p.set_row_blocks(stacked_blocks(std::vector<int64_t>(stacked.size(), tensor.size(0) / blocks), stacked));
  }
  known_.emplace(tensor.unsafeGetTensorImpl(), p);
  parameters_.emplace_back(p, tensor);
}

const Parameter* Description::overlapping(const at::Tensor& tensor) const {
  const auto bytes = [](const at::Tensor& t) {
    const auto* const first = static_cast<const std::byte*>(t.const_data_ptr());
    return std::pair(first, first + t.nbytes());
  };
  // Other tensors have gaps, which may hold another one's elements without sharing.
  const auto is_plain = [](const at::Tensor& t) {
    return !t.is_meta() && t.numel() > 0 && t.is_non_overlapping_and_dense();
  };
  if (!is_plain(tensor)) return nullptr;
  const auto [begin, end] = bytes(tensor);
  for (const auto& [parameter, other] : parameters_) {
    // Parameters that nothing trains stay equal, such as views of one table.
    if (!is_plain(other) || !(tensor.requires_grad() || other.requires_grad())) continue;
    const auto [from, to] = bytes(other);
    if (begin < to && from < end) return &parameter;
  }
  return nullptr;
}

void Description::describe_buffer(Mirror& mirror, const std::string& name, const std::string& full,
                                  const at::Tensor& tensor) {
  if (const Buffer* known = buffer_of(tensor)) {
    mirror.tie(name, *known);
    return;
  }
  const auto dtype = dtype_of_memory(tensor.scalar_type());
  if (!dtype || tensor.layout() != at::kStrided || !known_place(tensor) || !tensor.is_leaf()) {
    wrong_.push_back(
        fmt::format("buffer '{}' ({}) is not a dense tensor on the CPU (or a GPU, or the meta device) of a "
                    "supported type (f32, bf16, f16, f64, i32, i64, u8, bool)",
                    full, at::toString(tensor.scalar_type())));
    return;
  }
  const Shape shape(tensor.sizes().begin(), tensor.sizes().end());
  Buffer buffer = mirror.buffer(name, shape, *dtype, constant(0));
  // BatchNorm and InstanceNorm: statistics of the rank's own batches.
  if (name == "running_mean" || name == "running_var" || name == "num_batches_tracked") buffer.set_per_rank();
  buffers_.emplace_back(std::move(buffer), tensor);
}

}  // namespace sherd::torch::detail
