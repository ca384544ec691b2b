// `sherd run` with a launcher and training programs that are shell scripts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sherd/checkpoint/format/manifest.h>

#include "program.h"

namespace sherd::tools {

// Takes Open MPI's arguments, starts as many processes, and passes SIGUSR1 and SIGURG on to them.
inline constexpr const char* kLauncher = R"(#!/bin/bash
echo "launcher $*" >>"${0%/*}/log"
while [[ $1 != -n ]]; do shift; done
n=$2
shift 2
pids=()
trap 'kill -USR1 "${pids[@]}" 2>/dev/null' USR1
trap 'kill -URG "${pids[@]}" 2>/dev/null' URG
trap 'kill -TERM "${pids[@]}" 2>/dev/null; sleep 0.2; kill -KILL "${pids[@]}" 2>/dev/null' TERM
for ((r = 0; r < n; ++r)); do
  OMPI_COMM_WORLD_RANK=$r "$@" &
  pids+=($!)
done
for p in "${pids[@]}"; do
  while kill -0 "$p" 2>/dev/null; do wait "$p"; done
done
exit 0
)";

class Run : public ::testing::Test {
 protected:
  Run() { script("mpirun", kLauncher); }

  std::string script(const std::string& name, const std::string& text) {
    const std::string path = folder_.write(name, text);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  /// The program of each rank: $start and $rank say which, `here` is the test's folder.
  void program(const std::string& body) {
    script("program",
           "#!/bin/bash\nhere=${0%/*}\nstart=$SHERD_RUN_START\nrank=$OMPI_COMM_WORLD_RANK\n"
           "[[ $rank == 0 ]] && echo \"program $*\" >>\"$here/log\"\n" +
               body + "\n");
  }
  /// With a short --grace, unless the flags say another.
  std::string arguments(const std::string& flags, const std::string& of_program = "") const {
    return fmt::format("run --mpirun {} {} {} -- {} {}", folder_ / "mpirun",
                       flags.find("--grace") == flags.npos ? "--grace 1" : "", flags, folder_ / "program",
                       of_program);
  }
  Finished run(const std::string& flags, const std::string& of_program = "") const {
    return run_sherd(folder_, arguments(flags, of_program));
  }
  std::string log() const { return read_bytes(folder_ / "log"); }
  int starts() const {
    const std::string text = log();
    int count = 0;
    for (size_t at = 0; (at = text.find("launcher ", at)) != text.npos; ++at) ++count;
    return count;
  }
  /// Makes a folder with the name and sequence number of a committed checkpoint.
  void checkpoint(const std::string& name, char sequence) const {
    std::string manifest("sherdckp\1\0\0\0\0\0\0\0", 16);
    manifest += sequence + std::string(15, '\0');  // an empty message follows
    const auto add_checksum = [&](const void* of, int64_t bytes) {
      const uint64_t sum = checksum(of, bytes);
      manifest.append(reinterpret_cast<const char*>(&sum), sizeof sum);
    };
    add_checksum("", 0);
    add_checksum(manifest.data(), static_cast<int64_t>(manifest.size()));
    folder_.write(name + "/manifest.binpb", manifest);
  }

  TemporaryFolder folder_;
};

}  // namespace sherd::tools
