// `sherd ckpt ...`: checkpoints from the command line.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "ckpt_diff.h"
#include "ckpt_export.h"
#include "ckpt_inspect.h"
#include "ckpt_prune.h"
#include "ckpt_reshard.h"
#include "ckpt_verify.h"

namespace sherd::tools {

class CkptCommand {
 public:
  /// Adds the subcommand with subcommands and flags of its own, which write into this object; it outlives
  /// `app`'s parsing.
  CLI::App* add_to(CLI::App& app);
  /// Runs the given subcommand; results go to `out`, progress and hints to `err`. @returns the exit code.
  /// @throws Error for what cannot be read, is damaged or cannot be written.
  int run(std::ostream& out, std::ostream& err) const;

 private:
  void add_inspect(CLI::App& app);
  void add_verify(CLI::App& app);
  void add_export(CLI::App& app);
  void add_import(CLI::App& app);
  void add_diff(CLI::App& app);
  void add_reshard(CLI::App& app);
  void add_prune(CLI::App& app);

  CLI::App* app_ = nullptr;
  bool quiet_ = false;
  InspectOptions inspect_;
  VerifyOptions verify_;
  ExportOptions export_;
  ImportOptions import_;
  DiffOptions diff_;
  ReshardOptions reshard_;
  PruneOptions prune_;
};

}  // namespace sherd::tools
