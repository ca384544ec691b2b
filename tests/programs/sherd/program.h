// Runs the `sherd` program.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "temporary_folder.h"

namespace sherd::tools {

struct Finished {
  int exit_code = -1;
  std::string out, err;
};

/// With these arguments, written as for a shell, which runs `before` first.
inline Finished run_sherd(const TemporaryFolder& folder, const std::string& arguments,
                          const std::string& before = "") {
  const std::string out = folder / ".out", err = folder / ".err";
  const std::string command =
      before + std::string(SHERD_TOOL) + " " + arguments + " >" + out + " 2>" + err + " </dev/null";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, read_bytes(out), read_bytes(err)};
}

}  // namespace sherd::tools
