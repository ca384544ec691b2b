// Names and divisions of the families' files.
#pragma once

#include <sherd/fsdp/stored_names.h>
#include <sherd/nn/models/description.h>

namespace sherd::nn {

/// Returns the stored names of causal_model()'s parameters in folders of the description's family, as
/// `transformers` writes them: a file for each expert's matrices, gpt2's fused c_attn. @param fused_experts
/// the stacks as one tensor each, as they are in the memory of transformers 5.
StoredNames stored_names(const ModelDescription& description, bool fused_experts = false);

}  // namespace sherd::nn
