#include "train_gpt/settings/train_config.h"

#include <nlohmann/json.hpp>

#include "train_gpt/settings/settings.h"

namespace train_gpt {

std::string default_data_folder() { return SHERD_DEFAULT_DATA; }

std::string config_text(const TrainConfig& config) {
  TrainConfig copy = config;
  return sherd::config_text(fields_of(copy));
}

nlohmann::ordered_json to_json(const TrainConfig& config) {
  return nlohmann::ordered_json::parse(config_text(config));
}

}  // namespace train_gpt
