// Processors of this host that a process may use, by NUMA node, and a rank's share of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sherd {

struct HostProcessors {
  /// Processors of the calling thread's affinity mask (taskset, launchers, containers) by NUMA node, both ascending; one
  /// node where the system does not tell.
  std::vector<std::vector<int>> nodes;
  /// Number of threads that run at once: the processors, or fewer by the CPU quota of the process's control
  /// group, rounded down, at least 1.
  int at_once = 1;
};

/// Reads the mask and, below `root`, sys/devices/system/node, proc/self/cgroup and sys/fs/cgroup.
[[nodiscard]] HostProcessors host_processors(const std::filesystem::path& root = "/");

/// Returns the processors for one of `ranks` ranks on this host: those of the node that consecutive ranks share alike, or
/// of several neighbouring nodes where there are fewer ranks than nodes. Empty on a host of one node: the system places
/// threads there as well.
[[nodiscard]] std::vector<int> processors_of(const HostProcessors& host, int rank, int ranks);

/// Returns the processors of the calling thread's mask on the NUMA node of a PCI device ("0000:1B:00.0"), by
/// sys/bus/pci/devices. Empty where the system does not tell, and on a host of one node.
[[nodiscard]] std::vector<int> processors_beside(const std::string& pci_address,
                                                 const std::filesystem::path& root = "/");

/// Returns "64 processors on 2 NUMA nodes, CPU quota of 8", of these what limits or divides the host; else "".
[[nodiscard]] std::string describe(const HostProcessors& host);

/// Scope in which the calling thread and the threads that it starts run on these processors only. Memory that
/// they touch first is on their node. Empty processors, and a system that refuses, change nothing.
class BoundThread {
 public:
  explicit BoundThread(const std::vector<int>& processors);
  ~BoundThread();
  BoundThread(const BoundThread&) = delete;
  BoundThread& operator=(const BoundThread&) = delete;

 private:
  std::vector<int> before_;  // empty: nothing was changed
};

}  // namespace sherd
