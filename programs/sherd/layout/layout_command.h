// `sherd layout`: positions of a model's elements and the plan of its matrices, computed without running the model.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "arrangement.h"

namespace sherd::tools {

struct LayoutCommand {
  std::string params;  // file
  int64_t world = 1;
  std::string policy = "ragged";
  int64_t bucket_elements = 0;
  int64_t align = 64;
  bool per_unit = false;
  std::string optimizer = "muon";  // of matrices
  double whole_balance = 0.5;
  bool json = false;

  /// Adds the subcommand and its flags, which write into this object; it outlives `app`'s parsing.
  CLI::App* add_to(CLI::App& app);
  /// Prints to `out`; hints that are not failures go to `err`.
  /// @throws Error for a file that cannot be read or is wrong, and for output that cannot be written.
  void run(std::ostream& out, std::ostream& err) const;
};

}  // namespace sherd::tools
