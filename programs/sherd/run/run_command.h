// `sherd run ...`: runs a program of many ranks and restarts it after failures.
#pragma once

#include <ostream>

#include <CLI/CLI.hpp>

#include "run_loop.h"

namespace sherd::tools {

class RunCommand {
 public:
  /// Adds the subcommand, whose flags write into this object; it outlives `app`'s parsing.
  CLI::App* add_to(CLI::App& app);
  /// Stores the arguments after `--`. @returns the number of arguments before it, which are parsed.
  int take_command(int argc, const char* const* argv);
  /// @returns the exit code. @throws CLI::ParseError without a command, as for other wrong arguments;
  /// IoError.
  int run(std::ostream& err);

 private:
  CLI::App* app_ = nullptr;
  RunOptions options_;
  bool keep_rank_ = false;
  int64_t start_ranks_ = 0;
};

}  // namespace sherd::tools
