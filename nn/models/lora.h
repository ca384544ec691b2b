// Low-rank adaptation of a language model, as data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sherd::nn {

/// Pairs of small matrices that learn beside the model's matrices, which are frozen with everything else (Hu et al., LoRA,
/// 2021, arXiv 2106.09685). Beside NAME.weight [out, in] they are NAME.lora_A.weight [rank, in], whose first values are
/// those of nn.Linear, and NAME.lora_B.weight [out, rank], zeros; names and values as PEFT has them.
struct LoraOptions {
  int64_t rank = 0;  ///< 0: no adapters
  double alpha = 0;  ///< the pair's product is multiplied by alpha / rank
  /// NamePattern (fsdp/name_pattern.h), searched in "model.layers.0.self_attn.q_proj" and the like: the matrices of
  /// attention, dense MLPs and shared experts. One that also matches a stack of experts is refused.
  std::string targets = {};
};

/// Returns whether a parameter of this full name is of a pair.
inline bool is_adapter(std::string_view name) {
  return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
}

}  // namespace sherd::nn
