// Any bytes as a config.json, a hardware profile and a list of parameters are followed or refused with an InvalidArgument
// that can be printed. A config.json that is followed is written so that it is read as the same model, or has no such text.
#include <sherd/base/error.h>

#include <sherd/nn/hf/model_config.h>
#include <sherd/train/plan/hardware_profile.h>
#include "layout/param_file.h"
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

void read_others(std::string_view bytes) {
  const auto read = [&](auto parse) {
    try {
      (void)parse(bytes, "a.json");
    } catch (const sherd::InvalidArgument& e) {
      require_printable(e.what());
    }
  };
  read([](auto text, auto source) { return sherd::to_text(sherd::parse_hardware(text, source)); });
  read([](auto text, auto source) { return sherd::tools::parse_params(text, source); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  read_others(bytes);
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
