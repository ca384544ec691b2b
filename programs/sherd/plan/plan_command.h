// `sherd plan`: memory, bytes and time of a run before it is started.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "plan_flags.h"
#include "plan_search.h"
#include "plan_sweep.h"

namespace sherd::tools {

struct PlanCommand {
  PlanFlags flags;
  bool json = false, compare = false;
  std::string sweep, svg, trace, measure;

  /// Adds the subcommand and its flags, which write into this object; it outlives `app`'s parsing.
  CLI::App* add_to(CLI::App& app);
  /// Prints to `out`, errors to `err`. Returns the exit code: 2 for flags and files that cannot be used.
  int run(std::ostream& out, std::ostream& err);

 private:
  void print_json(const PlanRequest& request, std::ostream& out) const;
  void print_tables(const PlanRequest& request, std::ostream& out) const;

  const CLI::App* app_ = nullptr;
  std::optional<Sweep> range_;
  std::optional<PlanSearch> found_;
};

}  // namespace sherd::tools
