// The command line and the configuration file of a run, checked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Request of the command line: a run or, when `help` is set (--help, --version), only that text on stdout.
struct CommandLine {
  TrainConfig config;
  std::optional<std::string> help;
  /// Reason of the choice of --comm auto, a line; config.comm is the choice. Empty without --comm auto.
  std::string comm_choice = {};
  /// Settings that differ from the defaults and come from the checkpoint of --resume, as flags: "--dim 36".
  std::vector<std::string> inherited;
  /// Lines on a --model that is not as the checkpoint of --resume has it, for a program to print once.
  std::vector<std::string> notes;
};

/// Defaults, overridden by the run that saved the checkpoint of --resume (inherited_settings()), overridden by the
/// --config file, overridden by flags. The last of equal flags counts. A checkpoint that cannot be read is
/// accepted here: loading it reports the error.
/// @throws sherd::InvalidArgument naming *all* unusable flags and values, each with its remedy, or all errors
/// of the file with line and column; sherd::IoError when the file cannot be read. Prints nothing.
CommandLine parse_config(int argc, const char* const* argv);

}  // namespace train_gpt
