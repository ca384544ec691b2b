// Presets: shapes of published models by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sherd/nn/models/description.h>

namespace sherd::nn {

/// The names that preset() knows, "gpt2-124m" and so on, by family and size.
std::vector<std::string> preset_names();

/// The shape of a published model, as its config.json has it, for a random start. Names of releases whose
/// numbers differ in weights alone are not listed twice: qwen2-0.5b is Qwen2.5's as well.
/// @throws InvalidArgument listing the names for one that is none of them.
ModelDescription preset(std::string_view name);

}  // namespace sherd::nn
