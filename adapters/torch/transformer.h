// Layers of torch::nn::Transformer, TransformerEncoder and TransformerDecoder as modules that can be units.
#pragma once

#include <memory>
#include <vector>

#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/nn/pimpl.h>

#include <sherd/torch/call.h>

namespace sherd::torch {

/// Replaces the layers of libtorch's encoder and decoder by Sharded ones. libtorch calls its layers directly;
/// sherd intercepts calls of Sharded ones:
///
///     sherd::torch::replace_layers(*model->transformer);
///     sherd::torch::wrap_each(*model, sherd::torch::of_type<torch::nn::TransformerEncoderLayerImpl,
///                                                           torch::nn::TransformerDecoderLayerImpl>(), mesh);
///     sherd::torch::fully_shard(*model, mesh);
///
/// Names, tensors, options of the layers and results stay. Afterwards `transformer.encoder` and `decoder`
/// hold modules of other types, which have only forward(): TransformerEncoder and TransformerDecoder.
/// @throws InvalidArgument for a custom encoder or decoder, for layers that are replaced already, and for
/// layers that wrap() or fully_shard() was called with; without any change.
void replace_layers(::torch::nn::TransformerImpl& transformer);

/// Layers and norm of an encoder or a decoder of libtorch, under their names, as Sharded ones of the same tensors.
template <class LayerImpl>
class ShardedLayers : public ::torch::nn::Module {
 public:
  using Layer = Sharded<LayerImpl>;
  /// @throws InvalidArgument for layers of another type, and for layers known to sherd.
  template <class Coder>
  explicit ShardedLayers(const Coder& coder);

 protected:
  at::Tensor normed(const at::Tensor& h);
  const std::vector<std::shared_ptr<Layer>>& layers() const { return layers_; }

 private:
  std::vector<std::shared_ptr<Layer>> layers_;
  ::torch::nn::AnyModule norm_;
};

class TransformerEncoderImpl final : public ShardedLayers<::torch::nn::TransformerEncoderLayerImpl> {
 public:
  explicit TransformerEncoderImpl(const ::torch::nn::TransformerEncoder& encoder);
  at::Tensor forward(const at::Tensor& source, const at::Tensor& mask = {}, const at::Tensor& padding = {});
};

class TransformerDecoderImpl final : public ShardedLayers<::torch::nn::TransformerDecoderLayerImpl> {
 public:
  explicit TransformerDecoderImpl(const ::torch::nn::TransformerDecoder& decoder);
  at::Tensor forward(const at::Tensor& target, const at::Tensor& memory, const at::Tensor& target_mask = {},
                     const at::Tensor& memory_mask = {}, const at::Tensor& target_padding = {},
                     const at::Tensor& memory_padding = {});
};

/// In place of torch::nn::TransformerEncoder and TransformerDecoder that a program holds and calls itself, which no
/// replacement can reach:
///
///     encoder = register_module("encoder", sherd::torch::TransformerEncoder(torch::nn::TransformerEncoder(options)));
///
/// In containers such as torch::nn::Sequential their forward() takes all arguments.
class TransformerEncoder : public ::torch::nn::ModuleHolder<TransformerEncoderImpl> {
 public:
  using ::torch::nn::ModuleHolder<TransformerEncoderImpl>::ModuleHolder;
  using Impl = TransformerEncoderImpl;
};
class TransformerDecoder : public ::torch::nn::ModuleHolder<TransformerDecoderImpl> {
 public:
  using ::torch::nn::ModuleHolder<TransformerDecoderImpl>::ModuleHolder;
  using Impl = TransformerDecoderImpl;
};

}  // namespace sherd::torch
