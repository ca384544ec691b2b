// `sherd run`: restarts a program's ranks from its newest checkpoint until they end well.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "run_policy.h"

namespace sherd::tools {

struct RunOptions {
  PolicyOptions policy;
  /// At most one of them: names of hosts, or a host file (run_hosts.h); neither: this machine.
  std::string hosts, hostfile;
  /// The ranks start without MPI (run_local.h). So they do of a program with --comm nccl, without what is for mpirun alone.
  bool local = false;
  std::string mpirun = "mpirun";
  std::string remote_shell = "ssh -o BatchMode=yes -o ConnectTimeout=5";
  /// Further arguments of mpirun.
  std::vector<std::string> mpirun_arguments;
  /// In seconds, as StartOptions.
  double begin_within = 120, grace = 15, stop_grace = 300, stopped_for = 60, end_within = 3600;
  /// Longest wait of a restart for room in the folder of --save.
  double room_within = 3600;
  /// Program and arguments.
  std::vector<std::string> command;
};

/// Runs the program to its end; prints a line to `err` for each start, and one at the end.
/// @returns 0 when all ranks of a start ended with exit code 0, also after a signal that this process passed
/// on; 1 when it was aborted or stopped; 2 when the program refuses its arguments, or the number of ranks
/// cannot be met.
/// @throws IoError, InvalidArgument.
int run_with_restarts(const RunOptions& options, std::ostream& err);

/// Returns mpirun's command for one start. Visible for tests.
std::vector<std::string> launcher_command(const RunOptions& options, int64_t ranks, const std::string& hosts,
                                          const std::string& keeper, const std::vector<std::string>& command);

}  // namespace sherd::tools
