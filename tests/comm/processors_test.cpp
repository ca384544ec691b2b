// Processors of a host by node, and the ranks' shares of them, from files as Linux has them.
#include <sherd/comm/bootstrap/processors.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "temporary_folder.h"

namespace sherd::test {
namespace {

using Numbers = std::vector<int>;

/// Returns the processors of this process, without files.
Numbers allowed_here() { return host_processors("/no such folder").nodes.front(); }

TEST(HostProcessors, WithoutFilesAreOneNodeWithoutAQuota) {
  const HostProcessors host = host_processors("/no such folder");
  ASSERT_EQ(host.nodes.size(), 1u);
  EXPECT_EQ(host.at_once, std::ssize(host.nodes[0]));
  EXPECT_TRUE(processors_of(host, 0, 1).empty()) << "one node: the system places threads";
}

TEST(HostProcessors, NodesAreListedInOrderWithoutProcessorsThatAreNotAllowed) {
  const Numbers mine = allowed_here();
  const TemporaryFolder root;
  // The last one in a node of its own; a range far beyond what is here in the other.
  root.write("sys/devices/system/node/node10/cpulist", std::to_string(mine.back()) + "\n");
  std::string others;
  for (size_t i = 0; i + 1 < mine.size(); ++i) others += std::to_string(mine[i]) + ",";
  root.write("sys/devices/system/node/node2/cpulist", others + "1020-1023\n");
  root.write("sys/devices/system/node/possible", "2,10\n");
  const HostProcessors host = host_processors(root.path());
  if (mine.size() == 1) {
    EXPECT_EQ(host.nodes, (std::vector<Numbers>{mine}));
    return;
  }
  EXPECT_EQ(host.nodes, (std::vector<Numbers>{{mine.begin(), mine.end() - 1}, {mine.back()}}));
}

TEST(HostProcessors, NodesThatLeaveOutAProcessorDoNotCount) {
  const TemporaryFolder root;
  root.write("sys/devices/system/node/node0/cpulist", "\n");
  EXPECT_EQ(host_processors(root.path()).nodes, (std::vector<Numbers>{allowed_here()}));
}

TEST(HostProcessors, TheSmallestQuotaOfTheGroupsAroundTheProcessCounts) {
  const int all = static_cast<int>(allowed_here().size());
  const auto at_once = [](const std::string& cgroup, const std::string& file, const std::string& text,
                          const std::string& more = "") {
    const TemporaryFolder root;
    root.write("proc/self/cgroup", cgroup);
    root.write("sys/fs/cgroup/" + file, text);
    if (!more.empty()) root.write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", more);
    return host_processors(root.path()).at_once;
  };
  EXPECT_EQ(at_once("0::/a/b\n", "a/cpu.max", "100000 100000\n"), 1);
  EXPECT_EQ(at_once("0::/a/b\n", "a/b/cpu.max", "1000 100000\n"), 1) << "at least one";
  EXPECT_EQ(at_once("0::/a/b\n", "a/b/cpu.max", "max 100000\n"), all);
  EXPECT_EQ(at_once("0::/a/b\n", "a/b/cpu.max", "6400000 100000\n"), std::min(all, 64));
  EXPECT_EQ(at_once("0::/a/b\n", "other/cpu.max", "100000 100000\n"), all);
  EXPECT_EQ(
      at_once("3:cpu,cpuacct:/a\n1:name=systemd:/x\n", "cpu/a/cpu.cfs_quota_us", "150000\n", "100000\n"), 1);
  EXPECT_EQ(at_once("3:cpu,cpuacct:/a\n", "cpu/a/cpu.cfs_quota_us", "-1\n", "100000\n"), all);
  EXPECT_EQ(at_once("no group\n", "cpu.max", "100000 100000\n"), all);
}

TEST(HostProcessors, WhatDividesOrLimitsTheHostIsSaid) {
  EXPECT_EQ(describe({.nodes = {{0, 1}}, .at_once = 2}), "");
  EXPECT_EQ(describe({.nodes = {{0, 1}, {2, 3}}, .at_once = 4}), "4 processors on 2 NUMA nodes");
  EXPECT_EQ(describe({.nodes = {{0, 1, 2, 3}}, .at_once = 3}), "4 processors, CPU quota of 3");
  EXPECT_EQ(describe({.nodes = {{0, 1}, {2, 3}}, .at_once = 3}),
            "4 processors on 2 NUMA nodes, CPU quota of 3");
}

TEST(RanksProcessors, ConsecutiveRanksShareANodeOrHaveSeveral) {
  const HostProcessors host{.nodes = {{0, 1}, {2, 3}, {4, 5}, {6, 7}}, .at_once = 8};
  for (int r = 0; r < 8; ++r) EXPECT_EQ(processors_of(host, r, 8), host.nodes[static_cast<size_t>(r / 2)]);
  EXPECT_EQ(processors_of(host, 0, 2), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(processors_of(host, 1, 2), (Numbers{4, 5, 6, 7}));
  EXPECT_EQ(processors_of(host, 0, 1), (Numbers{0, 1, 2, 3, 4, 5, 6, 7}));
  // Ranks that do not divide: each has at least a node, and no node is left out.
  Numbers used;
  for (int r = 0; r < 3; ++r)
    for (const int p : processors_of(host, r, 3)) used.push_back(p);
  EXPECT_EQ(used, (Numbers{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(processors_of(host, 6, 7), (Numbers{6, 7}));
}

TEST(RanksProcessors, AGpuHasThoseOfItsNode) {
  const Numbers mine = allowed_here();
  const TemporaryFolder root;
  root.write("sys/devices/system/node/node0/cpulist", std::to_string(mine.back()) + ",1020-1023\n");
  root.write("sys/devices/system/node/node1/cpulist", "1010\n");
  const auto gpu = [&](const std::string& address, const std::string& node) {
    root.write("sys/bus/pci/devices/" + address + "/numa_node", node + "\n");
  };
  gpu("0000:1b:00.0", "0");
  gpu("0000:1c:00.0", "1");
  gpu("0000:1d:00.0", "-1");
  gpu("0000:1e:00.0", "5");
  const auto beside = [&](const std::string& address) { return processors_beside(address, root.path()); };
  const Numbers own = mine.size() > 1 ? Numbers{mine.back()} : Numbers{};
  EXPECT_EQ(beside("0000:1B:00.0"), own) << "the driver writes capitals";
  EXPECT_EQ(beside("0000:1b:00.0"), own);
  for (const char* none : {"0000:1C:00.0", "0000:1D:00.0", "0000:1E:00.0", "0000:1F:00.0", ""})
    EXPECT_EQ(beside(none), Numbers{}) << none;
}

TEST(RanksProcessors, ABoundThreadAndItsThreadsRunThereUntilItEnds) {
  const Numbers mine = allowed_here();
  {
    const BoundThread bound({mine.back()});
    EXPECT_EQ(allowed_here(), (Numbers{mine.back()}));
    Numbers inherited;
    std::thread([&] { inherited = allowed_here(); }).join();
    EXPECT_EQ(inherited, (Numbers{mine.back()}));
    const BoundThread nothing({});
    EXPECT_EQ(allowed_here(), (Numbers{mine.back()}));
  }
  EXPECT_EQ(allowed_here(), mine);
  { const BoundThread refused({1023}); }  // no such processor
  EXPECT_EQ(allowed_here(), mine);
}

}  // namespace
}  // namespace sherd::test
