// Names of the parts of a family's models.
#pragma once

#include <sherd/nn/detail/packed_linear.h>
#include <sherd/nn/models/description.h>

namespace sherd::nn::detail {

/// Names of modules and of parameters without ".weight" and ".bias", in the model or in the module that is
/// named before them.
struct FamilyNames {
  const char *table, *positions;  // null: rotary
  const char* layers;
  const char *norm1, *attention, *norm2, *mlp;  // of a layer; norms before attention and MLP
  const char *q, *k, *v, *out;  // of the attention; without k and v, q is one matrix of all three
  const char *up, *down;        // of the MLP; gated ones have `gate` as well
  const char* gate;
  const char *norm, *head;
  // Norms of what attention and MLP add to the residual stream; null: none.
  const char *norm1_behind = nullptr, *norm2_behind = nullptr;
  bool flat = false;  // parameters of attention and dense MLP are the layer's own
};

const FamilyNames& names_of(ModelFamily family);

/// LayerNorm with biases, and weights [in, out]; the others have RMSNorm and weights [out, in]. is_gpt() has the rest.
inline bool is_gpt2(const ModelDescription& d) { return d.family == ModelFamily::gpt2; }
inline WeightLayout layout_of(const ModelDescription& d) {
  return is_gpt2(d) ? WeightLayout::in_out : WeightLayout::out_in;
}

}  // namespace sherd::nn::detail
