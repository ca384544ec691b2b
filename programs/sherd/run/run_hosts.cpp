#include "run_hosts.h"

#include <cstdlib>
#include <numeric>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sherd/base/error.h>
#include <sherd/checkpoint/files/file_system.h>

#include "arguments.h"

namespace sherd::tools {
namespace {

constexpr int64_t kMaxSlots = 65536;

// A name that is safe in a command of the shell and among mpirun's.
void check_name(const std::string& name, const std::string& place) {
  const bool good = !name.empty() && name[0] != '-' &&
                    name.find_first_not_of(
                        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") == name.npos;
  if (!good) throw InvalidArgument(fmt::format("{}: '{}' is not a host name", place, name));
}

int64_t slots_in(const std::string& text, const std::string& place) {
  if (const std::string wrong = in_range(text, 1, kMaxSlots); !wrong.empty())
    throw InvalidArgument(fmt::format("{}: slots {}", place, wrong));
  return std::stoll(text);
}

bool is_here(const std::string& name) {
  char own[256] = "";
  ::gethostname(own, sizeof own - 1);
  const std::string host = own;
  return name == "localhost" || name == "127.0.0.1" || name == host || name == host.substr(0, host.find('.'));
}

}  // namespace

std::vector<RunHost> parse_hosts(const std::string& list, int64_t otherwise) {
  std::vector<RunHost> hosts;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    const size_t colon = word.find(':');
    const std::string name = word.substr(0, colon);
    check_name(name, "--hosts " + list);
    hosts.push_back(
        {name, colon == word.npos ? otherwise : slots_in(word.substr(colon + 1), "--hosts " + list)});
  }
  if (hosts.empty()) throw InvalidArgument("--hosts: the list is empty");
  return hosts;
}

std::vector<RunHost> read_hostfile(const std::string& path, int64_t otherwise) {
  constexpr int64_t kMaxBytes = 1 << 20;
  std::istringstream lines(read_whole(FileSystem::posix(), path, kMaxBytes));
  std::vector<RunHost> hosts;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string place = fmt::format("{}:{}", path, ++number);
    std::istringstream words(line.substr(0, line.find('#')));
    RunHost host{"", otherwise};
    if (!(words >> host.name)) continue;
    check_name(host.name, place);
    for (std::string word; words >> word;) {
      if (word.starts_with("slots="))
        host.slots = slots_in(word.substr(6), place);
      else if (!word.starts_with("max_slots=") && !word.starts_with("max-slots="))
        throw InvalidArgument(fmt::format("{}: '{}' is not understood; a line is NAME slots=N", place, word));
    }
    hosts.push_back(host);
  }
  if (hosts.empty()) throw InvalidArgument(fmt::format("{}: names no host", path));
  return hosts;
}

std::vector<RunHost> hosts_there(const std::vector<RunHost>& hosts,
                                 const std::function<bool(const std::string&)>& answers) {
  std::vector<char> there(hosts.size());
  {
    std::vector<std::jthread> asked;
    for (size_t i = 0; i < hosts.size(); ++i)
      asked.emplace_back([&, i] { there[i] = is_here(hosts[i].name) || answers(hosts[i].name) ? 1 : 0; });
  }
  std::vector<RunHost> left;
  for (size_t i = 0; i < hosts.size(); ++i)
    if (there[i] != 0) left.push_back(hosts[i]);
  return left;
}

bool answers_to(const std::string& remote_shell, const std::string& host) {
  const std::string command =
      fmt::format("timeout -k 1 10 {} {} true >/dev/null 2>&1 </dev/null", remote_shell, host);
  const int status = std::system(command.c_str());
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int64_t slots_of(const std::vector<RunHost>& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), int64_t{0},
                         [](int64_t sum, const RunHost& h) { return sum + h.slots; });
}

}  // namespace sherd::tools
