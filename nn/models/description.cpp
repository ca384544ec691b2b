#include <sherd/nn/models/description.h>

namespace sherd::nn {

std::string_view to_string(ModelFamily family) {
  switch (family) {
    case ModelFamily::gpt2:
      return "gpt2";
    case ModelFamily::llama:
      return "llama";
    case ModelFamily::mistral:
      return "mistral";
    case ModelFamily::qwen2:
      return "qwen2";
    case ModelFamily::qwen3:
      return "qwen3";
    case ModelFamily::qwen3_moe:
      return "qwen3_moe";
    case ModelFamily::mixtral:
      return "mixtral";
  }
  return "?";
}

}  // namespace sherd::nn
