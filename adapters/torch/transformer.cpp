#include <sherd/torch/transformer.h>

#include <fmt/format.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>

#include <memory>
#include <utility>
#include <vector>

#include <sherd/torch/call.h>
#include <sherd/torch/detail/attached.h>

namespace sherd::torch {
namespace {

namespace nn = ::torch::nn;

/// Returns the same layers in a module of type New. @throws InvalidArgument for a module that is not
/// libtorch's.
template <class New, class Old>
std::shared_ptr<New> replacement(const nn::AnyModule& module, const char* name) {
  const auto old = std::dynamic_pointer_cast<typename Old::Impl>(module.ptr());
  if (!old)
    throw InvalidArgument(fmt::format(
        "sherd::torch::replace_layers: the {} is a custom one, or replaced already; let its layers be "
        "sherd::torch::Holder<M>",
        name));
  return std::make_shared<New>(Old(old));
}

}  // namespace

template <class LayerImpl>
template <class Coder>
ShardedLayers<LayerImpl>::ShardedLayers(const Coder& coder) : nn::Module(coder.name()), norm_(coder.norm) {
  nn::ModuleList list;
  for (const auto& old : *coder.layers) {
    const auto* const layer = dynamic_cast<const LayerImpl*>(old.get());
    if (layer == nullptr || detail::attached_to(*old) != nullptr)
      throw InvalidArgument(fmt::format(
          "sherd::torch::replace_layers: a layer '{}' that is not one of libtorch's own, or that wrap() or "
          "fully_shard() has seen; call it before them",
          old->name()));
    layers_.push_back(std::make_shared<Layer>(*layer));
    layers_.back()->train(old->is_training());
    list->push_back(layers_.back());
  }
  register_module("layers", list);
  if (!norm_.is_empty()) register_module("norm", norm_.ptr());
  train(coder.is_training());
}

template <class LayerImpl>
at::Tensor ShardedLayers<LayerImpl>::normed(const at::Tensor& h) {
  return norm_.is_empty() ? h : norm_.forward(h);
}

TransformerEncoderImpl::TransformerEncoderImpl(const nn::TransformerEncoder& encoder)
    : ShardedLayers(*encoder) {}

at::Tensor TransformerEncoderImpl::forward(const at::Tensor& source, const at::Tensor& mask,
                                           const at::Tensor& padding) {
  at::Tensor h = source;
  for (const auto& layer : layers()) h = layer->forward(h, mask, padding);
  return normed(h);
}

TransformerDecoderImpl::TransformerDecoderImpl(const nn::TransformerDecoder& decoder)
    : ShardedLayers(*decoder) {}

at::Tensor TransformerDecoderImpl::forward(const at::Tensor& target, const at::Tensor& memory,
                                           const at::Tensor& target_mask, const at::Tensor& memory_mask,
                                           const at::Tensor& target_padding,
                                           const at::Tensor& memory_padding) {
  at::Tensor h = target;
  for (const auto& layer : layers())
    h = layer->forward(h, memory, target_mask, memory_mask, target_padding, memory_padding);
  return normed(h);
}

void replace_layers(nn::TransformerImpl& transformer) {
  const auto encoder =
      replacement<TransformerEncoderImpl, nn::TransformerEncoder>(transformer.encoder, "encoder");
  const auto decoder =
      replacement<TransformerDecoderImpl, nn::TransformerDecoder>(transformer.decoder, "decoder");
  transformer.encoder = nn::AnyModule(encoder);
  transformer.decoder = nn::AnyModule(decoder);
  transformer.replace_module("encoder", encoder);
  transformer.replace_module("decoder", decoder);
}

}  // namespace sherd::torch
