// The hosts that `sherd run` may use, and which of them are there.
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

/// "h1,h2:4": names, with the ranks that each takes where they are not `otherwise`. @throws InvalidArgument.
std::vector<RunHost> parse_hosts(const std::string& list, int64_t otherwise);
/// A host file as Open MPI's: "NAME [slots=N]" a line, # begins a comment. A host without slots takes
/// `otherwise`.
/// @throws IoError, InvalidArgument with the line.
std::vector<RunHost> read_hostfile(const std::string& path, int64_t otherwise);

/// Those that `answers`, asked all at once, a thread each. This host always does.
std::vector<RunHost> hosts_there(const std::vector<RunHost>& hosts,
                                 const std::function<bool(const std::string&)>& answers);
/// Whether `REMOTE_SHELL HOST true` succeeds within 10 s.
bool answers_to(const std::string& remote_shell, const std::string& host);

/// All slots together.
int64_t slots_of(const std::vector<RunHost>& hosts);

}  // namespace sherd::tools
