// Layers of torch::nn::Transformer as modules that can be units.
#pragma once

#include <torch/nn/modules/transformer.h>

namespace sherd::torch {

/// Replaces the layers of libtorch's encoder and decoder, which libtorch calls directly, by Sharded ones, whose calls sherd
/// intercepts:
///
///     sherd::torch::replace_layers(*model->transformer);
///     sherd::torch::wrap_each(*model, sherd::torch::of_type<torch::nn::TransformerEncoderLayerImpl,
///                                                           torch::nn::TransformerDecoderLayerImpl>(), mesh);
///     sherd::torch::fully_shard(*model, mesh);
///
/// Names, tensors, options of the layers and results stay. Afterwards `transformer.encoder` and `decoder` hold modules of
/// other types, which have forward() alone.
/// @throws InvalidArgument for a custom encoder or decoder, for layers that are replaced already, and for layers that wrap()
/// or fully_shard() has seen; nothing has changed then.
void replace_layers(::torch::nn::TransformerImpl& transformer);

}  // namespace sherd::torch
