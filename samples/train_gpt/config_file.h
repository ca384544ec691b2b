// The --config file: Protobuf text of message TrainConfig (config.proto).
#pragma once

#include <string>
#include <vector>

#include "config.h"

namespace train_gpt {

/// Sets the fields that the file names and leaves the others. Everything wrong with the file's text is
/// appended to `problems` as "path:line:column: reason", and then nothing is set; values are not checked
/// against bounds.
/// @throws sherd::IoError when the file cannot be read.
void read_config_file(const std::string& path, TrainConfig& config, std::vector<std::string>& problems);

}  // namespace train_gpt
