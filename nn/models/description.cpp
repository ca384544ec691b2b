#include <sherd/nn/models/description.h>

#include <sherd/base/enum_table.h>

namespace sherd::nn {

std::string_view to_string(ModelFamily family) {
  constexpr EnumTable<ModelFamily, 15> kFamilies{
      "gpt2",    "llama", "mistral",  "qwen2", "qwen3",       "qwen3_moe", "mixtral", "deepseek_v3",
      "kimi_k2", "olmo2", "glm4_moe", "olmo3", "gemma3_text", "gpt_oss",   "byte_gpt"};
  return kFamilies.name(family);
}

}  // namespace sherd::nn
