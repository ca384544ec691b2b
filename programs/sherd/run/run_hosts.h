// Hosts that `sherd run` may use, and which of them answer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace sherd::tools {

struct RunHost {
  std::string name;
  int64_t slots = 0;  // ranks that it takes
};

/// Parses "h1,h2:4": names, with the number of ranks where it is not `otherwise`. @throws InvalidArgument.
std::vector<RunHost> parse_hosts(const std::string& list, int64_t otherwise);
/// Parses a host file of Open MPI: "NAME [slots=N]" a line, # begins a comment. A host without slots takes
/// `otherwise`.
/// @throws IoError, InvalidArgument with the line.
std::vector<RunHost> read_hostfile(const std::string& path, int64_t otherwise);

/// Returns the hosts for which `answers` is true, called for all at once, a thread each. This host always
/// answers.
std::vector<RunHost> hosts_there(const std::vector<RunHost>& hosts,
                                 const std::function<bool(const std::string&)>& answers);
/// Returns whether `REMOTE_SHELL HOST true` succeeds within 10 s.
bool answers_to(const std::string& remote_shell, const std::string& host);

/// Returns the sum of all slots.
int64_t slots_of(const std::vector<RunHost>& hosts);

}  // namespace sherd::tools
