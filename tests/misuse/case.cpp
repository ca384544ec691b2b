#include "misuse/case.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <sherd/base/error.h>

namespace sherd::misuse {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// A message names the place: which verb, unit, parameter, option or rank.
bool names_a_place(const std::string& words) {
  static constexpr std::array<std::string_view, 33> kPlaces = {
      "rank",   "unit",    "parameter",  "mesh",    "fully_shard", "Optimizer", "optimizer",
      "clip",   "launch",  "all_",       "reduce_", "gather",      "scatter",   "broadcast",
      "send",   "recv",    "barrier",    "route",   "routing",     "device",    "kernels",
      "module", "layout",  "checkpoint", "save",    "memory",      "model",     "Mesh",
      "AdamW",  "backend", "threads",    "timeout", "bootstrap"};
  return words.size() >= 20 && std::any_of(kPlaces.begin(), kPlaces.end(),
                                           [&](std::string_view p) { return words.find(p) != words.npos; });
}

Ended judged(const Case& c) {
  try {
    const std::string wrong = c.run();
    return wrong.empty() ? Ended{Ending::right_result, ""} : Ended{Ending::silent, wrong};
  } catch (const OwnError& e) {
    return {Ending::named_error, e.what()};
  } catch (const Error& e) {
    return {names_a_place(e.what()) ? Ending::named_error : Ending::unnamed_error, e.what()};
  } catch (const std::exception& e) {
    return {Ending::unnamed_error, fmt::format("not an error of sherd: {}", e.what())};
  } catch (...) {
    return {Ending::unnamed_error, "something that is no exception of the standard"};
  }
}

/// One case in a process of its own.
class Child {
 public:
  Child(const Case& c, size_t index) : index_(index), start_(Clock::now()) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe: " + std::string(std::strerror(errno)));
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork: " + std::string(std::strerror(errno)));
    if (pid_ == 0) {
      const rlimit none{0, 0};
      ::setrlimit(RLIMIT_CORE, &none);
      const Ended ended = judged(c);
      std::string text = static_cast<char>('0' + static_cast<int>(ended.ending)) + ended.words;
      text.resize(std::min<size_t>(text.size(), 4000));  // what a pipe takes at once
      const ssize_t written = ::write(ends[1], text.data(), text.size());
      ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
    }
    ::close(ends[1]);
    from_ = ends[0];
  }
  ~Child() {
    if (from_ >= 0) ::close(from_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  size_t index() const { return index_; }
  /// Returns the result if it has ended.
  std::optional<Ended> poll(double limit) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == 0) {
      if (since(start_) < limit) return {};
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
      return Ended{Ending::hang, fmt::format("killed after {} s", limit), since(start_)};
    }
    std::string text(4096, '\0');
    const ssize_t got = ::read(from_, text.data(), text.size());
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    if (text.empty() || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
      return Ended{
          Ending::crash,
          WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status)) : "it ended without a word",
          since(start_)};
    return Ended{static_cast<Ending>(text[0] - '0'), text.substr(1), since(start_)};
  }

 private:
  size_t index_;
  Clock::time_point start_;
  pid_t pid_ = -1;
  int from_ = -1;
};

}  // namespace

const char* name_of(Ending ending) {
  switch (ending) {
    case Ending::named_error:
      return "named error";
    case Ending::right_result:
      return "right result";
    case Ending::unnamed_error:
      return "unnamed error";
    case Ending::silent:
      return "silent";
    case Ending::crash:
      return "crash";
    case Ending::hang:
      break;
  }
  return "hang";
}

std::vector<Ended> run_all(const std::vector<Case>& cases, double seconds) {
  const size_t at_once = std::clamp(std::thread::hardware_concurrency(), 1u, 4u);
  std::vector<Ended> ended(cases.size());
  std::deque<std::unique_ptr<Child>> running;
  for (size_t next = 0; next < cases.size() || !running.empty();) {
    while (next < cases.size() && running.size() < at_once) {
      running.push_back(std::make_unique<Child>(cases[next], next));
      ++next;
    }
    const size_t before = running.size();
    std::erase_if(running, [&](auto& child) {
      const auto end = child->poll(seconds);
      if (end) ended[child->index()] = *end;
      return end.has_value();
    });
    if (running.size() == before) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ended;
}

}  // namespace sherd::misuse
