// `sherd trace`: what the ranks of a launch that failed did last, and where they parted.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace sherd::tools {

struct TraceCommand {
  std::vector<std::string> files;
  int64_t last = 20;
  bool json = false, times = false;

  /// Adds the subcommand and its flags, which write into this object; it outlives `app`'s parsing.
  CLI::App* add_to(CLI::App& app);
  /// Prints to `out`.
  /// @throws Error for a file that cannot be read or is none of a flight recorder, and for output that cannot be written.
  void run(std::ostream& out) const;

 private:
  void compare_flights(std::ostream& out) const;
};

}  // namespace sherd::tools
