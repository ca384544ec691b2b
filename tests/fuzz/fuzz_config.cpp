// Any bytes as a config.json are followed or refused with an InvalidArgument that can be printed. What is followed is
// written as a config.json that is read as the same model, or has no such text.
#include <sherd/base/error.h>

#include <sherd/nn/hf/model_config.h>
#include "messages.h"

namespace {

void write_again(const sherd::hf::ModelConfig& config) {
  std::string text;
  try {
    text = sherd::hf::model_config_text(config.description, sherd::DType::f32);
  } catch (const sherd::InvalidArgument& e) {
    require_printable(e.what());
    return;
  }
  const sherd::hf::ModelConfig again = sherd::hf::parse_model_config(text, "again");
  if (sherd::hf::model_config_text(again.description, sherd::DType::f32) != text)
    throw std::logic_error("a config.json is not read as it is written");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const sherd::hf::ModelConfig config = sherd::hf::parse_model_config(bytes, "config.json");
    for (const std::string& note : config.notes) require_printable(note);
    for (const int64_t seq : {1, 4096}) {
      try {
        require_sequence(config, seq);
      } catch (const sherd::InvalidArgument& e) {
        require_printable(e.what());
      }
    }
    write_again(config);
  } catch (const sherd::InvalidArgument& e) {
    require_printable(e.what());
  }
  return 0;
}
