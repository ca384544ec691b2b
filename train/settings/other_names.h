// Names of settings in other training programs: Hugging Face Trainer, torchtitan, Megatron-LM, nanoGPT, llm.c.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sherd {

/// Returns the end of a message on an unknown flag or field: "; did you mean --lr?", or advice; "" where no known name
/// is near. Dashes and underscores, case, and what is in front of a dot (--optimizer.lr) do not matter. In this order: the
/// same letters, the table of other names, names that one begins with, names that differ by a third of the letters
/// or fewer.
/// @param unknown as it was given, with or without dashes in front and "=VALUE" behind
/// @param known the program's settings, with underscores as in Field::name
std::string suggestion(std::string_view unknown, const std::vector<std::string_view>& known);
/// Returns the settings that the table of other names leads to.
std::vector<std::string_view> settings_of_other_names();

}  // namespace sherd
