// The processes of one start of `sherd run` on this host.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include <signal.h>
#include <sys/types.h>

namespace sherd::tools {

/// From now on whatever process below this one loses its parent becomes this one's child, so that none is
/// lost sight of. Once, at the beginning; a forked process does not inherit it.
void adopt_orphans();

/// A set of signals.
sigset_t signal_set(const std::vector<int>& signals);

struct StartedProcess {
  pid_t process = -1;
  // Its stdout and stderr, and those of all below it, to be read here; the caller closes them.
  int output = -1, error_output = -1;
};
/// Starts a program in a session of its own, which SIGKILL ends when this process dies, with `environment`
/// added and an empty stdin. It is started with `blocked` signals, and no other. @throws IoError when it
/// cannot be started.
StartedProcess start_process(const std::vector<std::string>& command,
                             const std::map<std::string, std::string>& environment, const sigset_t& blocked);

/// All processes below this one, as /proc shows them, parents before children.
std::vector<pid_t> descendants();

/// Kills (SIGKILL) and waits for all processes below this one; stopped ones, too. @returns whether none is
/// left after `longest` (a process that the system cannot end, as on a file system that hangs).
bool end_descendants(std::chrono::milliseconds longest);
/// Time in which a busy system ends killed processes.
inline constexpr std::chrono::milliseconds kSystemEnds{20'000};

}  // namespace sherd::tools
