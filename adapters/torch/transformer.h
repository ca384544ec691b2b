// Layers of torch::nn::Transformer as modules that can be units.
#pragma once

#include <torch/nn/modules/transformer.h>

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
/// hold modules of other types, which have only forward().
/// @throws InvalidArgument for a custom encoder or decoder, for layers that are replaced already, and for
/// layers that wrap() or fully_shard() was called with; without any change.
void replace_layers(::torch::nn::TransformerImpl& transformer);

}  // namespace sherd::torch
