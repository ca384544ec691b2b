// The keeper of one rank: what a launcher starts in place of the program, on every host.
#pragma once

#include <string>
#include <vector>

namespace sherd::tools {

/// Starts the program as the leader of a process group of its own and waits for it. Reports to the supervisor
/// (run_report.h, on stderr) that it has begun, how it ended, and when it is suspended. SIGUSR1, which mpirun
/// passes on to all hosts, and SIGTERM become a SIGTERM of the program. When the launcher on this host ends,
/// the keeper is killed, and with it the program, suspended or not. A process beside the keeper reports the rank as killed when
/// the keeper is killed.
/// @returns the program's exit code, 128 + the signal that killed it, or 127 when it cannot be started.
int keep_rank(const std::vector<std::string>& command);

}  // namespace sherd::tools
