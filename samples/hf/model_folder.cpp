#include "hf/model_folder.h"

#include <sherd/nn/models/stored_names.h>

namespace hf {

sherd::StoredForms stored_forms(const sherd::nn::ModelDescription& description) {
  const bool gpt2 = description.family == sherd::nn::ModelFamily::gpt2;
  sherd::StoredForms forms;
  forms.forms.push_back(sherd::nn::stored_names(description));
  if (description.mixture.experts > 0) forms.forms.push_back(sherd::nn::stored_names(description, true));
  forms.droppable_prefixes = {gpt2 ? "transformer." : "model."};
  // Causal masks, and the angles' frequencies, which older versions stored.
  if (gpt2)
    forms.ignored_endings = {".attn.bias", ".attn.masked_bias"};
  else
    forms.ignored_endings = {"rotary_emb.inv_freq"};
  if (description.tied)
    forms.copies = {{"lm_head.weight", gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight"}};
  return forms;
}

}  // namespace hf
