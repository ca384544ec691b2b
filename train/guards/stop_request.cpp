#include <sherd/train/guards/stop_request.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/base/program.h>

namespace sherd {
namespace {

// The state that the handler can reach. A signal handler takes no other argument than globals; StopRequest
// makes sure that one object at a time uses it, and resets it.
std::atomic<bool> in_use{false};
std::atomic<int> first_signal{0};
std::atomic<int64_t> first_at{0};  // ns of the monotonic clock; 0: no signal yet
std::atomic<int> event{-1};        // eventfd
std::atomic<bool> second_ends{true};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

int64_t monotonic_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// A failed write is lost: a handler has no caller to report it to.
void put(int descriptor, const void* data, size_t bytes) noexcept {
  [[maybe_unused]] const ssize_t written = ::write(descriptor, data, bytes);
}

void wake(int descriptor) noexcept {
  const uint64_t one = 1;
  put(descriptor, &one, sizeof one);
}

extern "C" void sherd_on_stop_signal(int number) {
  const int error = errno;
  const int64_t now = monotonic_ns();
  int64_t none = 0;
  if (first_at.compare_exchange_strong(none, now)) {
    first_signal.store(number);
    wake(event.load());
  } else if (second_ends.load() && now - none >= std::chrono::nanoseconds(kSameSignal).count()) {
    constexpr char kText[] = "a second signal: ended at once, nothing more was saved\n";
    put(STDERR_FILENO, kText, sizeof kText - 1);
    ::_exit(128 + number);
  }
  errno = error;
}

// Waits until the descriptor can be read. @returns whether it can, and false when the time is over.
bool readable(int descriptor, int milliseconds) {
  pollfd entry{.fd = descriptor, .events = POLLIN, .revents = 0};
  while (true) {
    const int found = ::poll(&entry, 1, milliseconds);
    if (found >= 0 || errno != EINTR) return found > 0;
  }
}

}  // namespace

std::vector<int> stop_signals() { return {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}; }

bool is_stop_signal(int signal) {
  const std::vector<int> all = stop_signals();
  return std::find(all.begin(), all.end(), signal) != all.end();
}

struct StopRequest::Impl {
  StopRequestOptions options;
  int signalled = -1, ended = -1;  // eventfds: the handler's, and the destructor's
  std::vector<std::pair<int, struct sigaction>> before;
  std::thread watch;
  std::once_flag released;

  ~Impl() {
    release();
    event.store(-1);
    for (const int fd : {signalled, ended})
      if (fd >= 0) ::close(fd);
    in_use.store(false);
  }

  void release(bool ignored = false) noexcept {
    std::call_once(released, [&] {
      for (auto& [number, action] : before) {
        if (ignored) action.sa_handler = SIG_IGN, action.sa_flags = 0;
        ::sigaction(number, &action, nullptr);
      }
      if (!watch.joinable()) return;
      // Wakes the thread in whichever of its two waits it is.
      wake(ended);
      wake(signalled);
      watch.join();
    });
  }

  void take_signals() {
    for (const int number : options.signals) {
      struct sigaction action = {};
      struct sigaction old = {};
      action.sa_handler = sherd_on_stop_signal;
      action.sa_flags = SA_RESTART;  // interrupted reads and waits of other code are restarted
      ::sigemptyset(&action.sa_mask);
      if (::sigaction(number, &action, &old) != 0)
        throw InvalidArgument(
            fmt::format("StopRequest: {} cannot be taken: {}; name SIGTERM, SIGINT or another signal "
                        "that a process may handle",
                        name_of(number), std::strerror(errno)));
      before.emplace_back(number, old);
      if (old.sa_handler == SIG_IGN) ::sigaction(number, &old, nullptr);
    }
  }

  void wait_and_expire() {
    if (!readable(signalled, -1) || readable(ended, 0)) return;
    const auto milliseconds = std::min<int64_t>(options.grace.count(), 1 << 30);
    if (readable(ended, static_cast<int>(milliseconds))) return;
    if (options.expired) return options.expired();
    print_error(
        options.program,
        fmt::format("{} came, and {:.1f} s later the run had not saved and ended: the grace is over. Nothing "
                    "that was saved before is harmed; give a longer grace, or save more often",
                    name_of(first_signal.load()), static_cast<double>(options.grace.count()) / 1e3));
    ::_exit(1);
  }
};

StopRequest::StopRequest(StopRequestOptions options) {
  if (options.signals.empty()) throw InvalidArgument("StopRequest: name at least one signal");
  if (in_use.exchange(true))
    throw InvalidArgument(
        "StopRequest: this process has one already; signals are the process's, so end that first");
  impl_ = std::make_unique<Impl>();
  impl_->options = std::move(options);
  first_signal.store(0);
  first_at.store(0);
  second_ends.store(impl_->options.second_ends);
  impl_->signalled = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  impl_->ended = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (impl_->signalled < 0 || impl_->ended < 0)
    throw IoError(fmt::format("StopRequest: no eventfd: {}; raise the limit of open files (ulimit -n)",
                              std::strerror(errno)));
  event.store(impl_->signalled);
  impl_->take_signals();
  if (impl_->options.grace.count() > 0)
    impl_->watch = std::thread([i = impl_.get()] { i->wait_and_expire(); });
}

StopRequest::~StopRequest() = default;

void StopRequest::release() noexcept { impl_->release(); }
void StopRequest::release_ignored() noexcept { impl_->release(true); }

int StopRequest::signal() const noexcept { return first_signal.load(); }

double StopRequest::seconds_since_signal() const noexcept {
  const int64_t at = first_at.load();
  return at == 0 ? 0 : static_cast<double>(monotonic_ns() - at) / 1e9;
}

std::string StopRequest::name_of(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

}  // namespace sherd
