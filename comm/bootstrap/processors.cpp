#include <sherd/comm/bootstrap/processors.h>

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

namespace sherd {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::optional<int64_t> number_in(std::string_view text) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(n) : std::nullopt;
}

/// The processors of this thread's mask.
std::vector<int> allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> all;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int p = 0; p < CPU_SETSIZE; ++p)
      if (CPU_ISSET(p, &set)) all.push_back(p);
  for (unsigned p = 0; all.empty() && p < std::max(1u, std::thread::hardware_concurrency()); ++p)
    all.push_back(static_cast<int>(p));
  return all;
}

bool bind_thread(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int p : processors)
    if (p < CPU_SETSIZE) CPU_SET(p, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

/// Numbers of a list such as "0-3,8".
std::vector<int> numbers_of(const std::string& list) {
  std::vector<int> all;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) {
    const size_t dash = part.find('-');
    const auto first = number_in(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : number_in(part.substr(dash + 1));
    if (!first || !last) continue;
    for (int64_t n = *first; n <= *last && n < CPU_SETSIZE; ++n) all.push_back(static_cast<int>(n));
  }
  return all;
}

/// The processors of a node that are allowed.
std::vector<int> of_node(const fs::path& node, const std::vector<int>& allowed) {
  std::vector<int> all = numbers_of(first_line(node / "cpulist"));
  std::erase_if(all, [&](int p) { return !std::ranges::binary_search(allowed, p); });
  return all;
}

std::vector<std::vector<int>> by_node(const fs::path& root, const std::vector<int>& allowed) {
  std::map<int64_t, std::vector<int>> nodes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "sys/devices/system/node", error)) {
    const std::string name = entry.path().filename().string();
    const auto number = name.starts_with("node") ? number_in(std::string_view(name).substr(4)) : std::nullopt;
    if (!number) continue;
    if (auto processors = of_node(entry.path(), allowed); !processors.empty())
      nodes[*number] = std::move(processors);
  }
  std::vector<std::vector<int>> all;
  size_t count = 0;
  for (auto& [number, processors] : nodes) {
    count += processors.size();
    all.push_back(std::move(processors));
  }
  if (count != allowed.size()) return {allowed};  // some lie in no node, or in two
  return all;
}

/// Processors' worth of time per period that a group's files allow; 0: any.
double quota_of(const fs::path& group) {
  std::istringstream v2(first_line(group / "cpu.max"));
  std::string quota, period;
  if (!(v2 >> quota >> period)) {
    quota = first_line(group / "cpu.cfs_quota_us");
    period = first_line(group / "cpu.cfs_period_us");
  }
  const auto time = number_in(quota), of = number_in(period);
  if (!time || !of || *time <= 0 || *of <= 0) return 0;
  return static_cast<double>(*time) / static_cast<double>(*of);
}

/// The smallest quota of the process's groups and of those around them; 0: none.
double cpu_quota(const fs::path& root) {
  std::ifstream in(root / "proc/self/cgroup");
  double least = 0;
  for (std::string line; std::getline(in, line);) {
    const size_t name = line.find(':'), path = line.find(':', name + 1);  // "0::/a/b", "4:cpu,cpuacct:/a/b"
    if (name == std::string::npos || path == std::string::npos) continue;
    const std::string kind = line.substr(name + 1, path - name - 1);
    if (!kind.empty() && ("," + kind + ",").find(",cpu,") == std::string::npos) continue;
    const fs::path base = root / "sys/fs/cgroup" / (kind.empty() ? "" : "cpu");
    fs::path group = fs::path(line.substr(path + 1)).relative_path();
    for (;; group = group.parent_path()) {
      const double quota = quota_of(base / group);
      if (quota > 0 && (least == 0 || quota < least)) least = quota;
      if (group.empty()) break;
    }
  }
  return least;
}

}  // namespace

HostProcessors host_processors(const fs::path& root) {
  const std::vector<int> allowed = allowed_processors();
  const auto count = static_cast<int>(allowed.size());
  const double quota = cpu_quota(root);
  return {.nodes = by_node(root, allowed),
          .at_once = quota > 0 && quota < count ? std::max(1, static_cast<int>(quota)) : count};
}

std::vector<int> processors_of(const HostProcessors& host, int rank, int ranks) {
  const auto nodes = static_cast<int64_t>(host.nodes.size());
  if (nodes < 2) return {};
  const int64_t first = rank * nodes / ranks, last = std::max(first + 1, (rank + 1) * nodes / ranks);
  std::vector<int> all;
  for (int64_t n = first; n < last; ++n)
    all.insert(all.end(), host.nodes[static_cast<size_t>(n)].begin(),
               host.nodes[static_cast<size_t>(n)].end());
  return all;
}

std::vector<int> processors_beside(const std::string& pci_address, const fs::path& root) {
  std::string name = pci_address;
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto node = number_in(first_line(root / "sys/bus/pci/devices" / name / "numa_node"));
  if (name.empty() || !node || *node < 0) return {};  // -1: of no node
  const std::vector<int> allowed = allowed_processors();
  std::vector<int> own = of_node(root / fmt::format("sys/devices/system/node/node{}", *node), allowed);
  return own.size() < allowed.size() ? own : std::vector<int>();
}

std::string describe(const HostProcessors& host) {
  int64_t processors = 0;
  for (const auto& node : host.nodes) processors += static_cast<int64_t>(node.size());
  const bool divided = host.nodes.size() > 1, limited = host.at_once < processors;
  if (!divided && !limited) return "";
  return fmt::format("{} processors{}{}", processors,
                     divided ? fmt::format(" on {} NUMA nodes", host.nodes.size()) : "",
                     limited ? fmt::format(", CPU quota of {}", host.at_once) : "");
}

BoundThread::BoundThread(const std::vector<int>& processors) {
  if (processors.empty()) return;
  std::vector<int> before = allowed_processors();
  if (bind_thread(processors)) before_ = std::move(before);
}

BoundThread::~BoundThread() {
  if (!before_.empty()) bind_thread(before_);
}

}  // namespace sherd
