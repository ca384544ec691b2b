// The keeper of one rank: what a launcher starts in place of the program, on every host.
#pragma once

#include <csignal>
#include <string>
#include <vector>

namespace sherd::tools {

/// Signal that ends a rank at once. No batch system sends it, and a process without a handler ignores it.
constexpr int kEndRank = SIGURG;

/// Runs the program as the leader of a process group, and reports to the supervisor (run_report.h, on stderr)
/// that it has begun, how it ended, and when it is suspended. Two processes do so: the keeper is the program's
/// parent, and this process is the keeper's. Each ends everything below when the other is killed, and reports
/// the rank as killed. This process is killed when the launcher on this host ends.
///
/// A stop signal (stop_signals()), which mpirun passes on as SIGUSR1 to all hosts, becomes one SIGTERM of the
/// program and of each process that it has started, however many arrive. After it the rank ends when the last
/// of them has ended. A program that a stop signal kills, such as a script, passes the rank on to the processes
/// that it has started: the rank then ends with the largest of their exit codes.
///
/// kEndRank, and a SIGTERM of the launcher without a stop signal, become a SIGTERM, and a SIGKILL 2 s later, or
/// at once for a suspended program and one that received SIGTERM before. So does what a program leaves behind
/// that ends without a stop signal.
/// @returns the program's exit code, 128 + the signal that killed it, or 127 when it cannot be started.
int keep_rank(const std::vector<std::string>& command);

}  // namespace sherd::tools
