// The processes of one start of `sherd run` on this host.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

namespace sherd::tools {

/// From now on whatever process below this one loses its parent becomes this one's child, so that none is
/// lost sight of. Once, at the beginning.
void adopt_orphans();

struct StartedProcess {
  pid_t process = -1;
  int error_output = -1;  // its stderr, and that of all below it, to be read here; the caller closes it
};
/// Starts a program in a session of its own, which SIGKILL ends when this process dies, with `environment`
/// added, an empty stdin and this process's stdout. @throws IoError when it cannot be started.
StartedProcess start_process(const std::vector<std::string>& command,
                             const std::map<std::string, std::string>& environment);

/// All processes below this one, as /proc shows them, parents before children.
std::vector<pid_t> descendants();

/// Kills (SIGKILL) and waits for all processes below this one; stopped ones, too. @returns whether none is
/// left after `longest` (a process that the system cannot end, as on a file system that hangs).
bool end_descendants(std::chrono::milliseconds longest);

}  // namespace sherd::tools
