#include <sherd/comm/bootstrap/detail/socket.h>

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include <sherd/base/error.h>
#include <sherd/base/printable.h>

namespace sherd {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host, int port, int flags, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    why = fmt::format("the name '{}' is not known: {}", printable(host), gai_strerror(error));
    found = nullptr;
  }
  return {found, &freeaddrinfo};
}

/// Waits until the socket is ready for `events`; false at the deadline. Polls at least once.
bool ready(int fd, short events, Socket::Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd p{fd, events, 0};
    // At most a minute for each poll: deadlines may be a year away, and poll() takes an int.
    const int n = poll(&p, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000)));
    if (n > 0) return true;
    if ((n < 0 && errno != EINTR) || left.count() <= 0) return false;
  }
}

std::string error_text(int error) { return std::strerror(error); }

/// Returns the numeric address and port. An IPv4 client of an IPv6 socket is shown by its IPv4 address.
void name(const sockaddr_storage& address, socklen_t size, std::string& host, std::string& port) {
  char h[NI_MAXHOST] = "?", p[NI_MAXSERV] = "?";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, h, sizeof h, p, sizeof p,
              NI_NUMERICHOST | NI_NUMERICSERV);
  const std::string_view text = h, mapped = "::ffff:";
  host = text.starts_with(mapped) ? text.substr(mapped.size()) : text;
  port = p;
}

}  // namespace

bool is_address(const std::string& host) {
  std::string why;
  return !host.empty() && resolve(host, 0, AI_NUMERICHOST, why) != nullptr;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || (host.starts_with("127.") && is_address(host));
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

// Keepalive detects an unreachable host within about 25 s (10 s idle, then 3 probes 5 s apart); without it a
// connection to a host without power stays open for ever.
void Socket::prepare() const {
  const int on = 1, idle = 10, interval = 5, count = 3;
  // Requests are small and wait for their replies, which Nagle's algorithm would delay.
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd_, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd_, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(fd_, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  // Nothing is kept alive while data waits for its acknowledgement; that has a limit of its own.
  const unsigned unacknowledged_ms = 25'000;
  setsockopt(fd_, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
}

namespace {

/// Returns a listening socket; empty on failure, with the error of the last attempt.
Socket listen_on(const std::string& host, int port, std::string& why, int& error) {
  const Addresses addresses = resolve(host, port, AI_PASSIVE, why);
  std::vector<const addrinfo*> order;
  for (const addrinfo* a = addresses.get(); a; a = a->ai_next) order.push_back(a);
  // With IPv6 first one socket takes both families.
  if (host.empty())
    std::stable_partition(order.begin(), order.end(), [](auto* a) { return a->ai_family == AF_INET6; });
  for (const addrinfo* a : order) {
    Socket s(::socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol));
    const int on = 1;
    // A restarted job may find its port in TIME_WAIT from the run before.
    if (s) setsockopt(s.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const int off = 0;  // [::] also takes IPv4
    if (s && a->ai_family == AF_INET6) setsockopt(s.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (s && ::bind(s.fd(), a->ai_addr, a->ai_addrlen) == 0 && ::listen(s.fd(), SOMAXCONN) == 0) return s;
    error = errno;
    why = error_text(error);
  }
  return {};
}

}  // namespace

Socket Socket::listen(const std::string& host, int port) {
  // A host's own name may mean another address there than elsewhere.
  std::string why;
  int error = 0;
  const bool exact = host == "localhost" || is_address(host);
  Socket s = listen_on(exact ? host : "", port, why, error);
  // An address by which other hosts reach this one need not be its own, for example behind NAT.
  if (!s && exact && error == EADDRNOTAVAIL) s = listen_on("", port, why, error);
  if (s) return s;
  throw CommError(fmt::format(
      "store: cannot listen on {}: {}; SHERD_STORE_PORT can name a free port",
      exact && error != EADDRNOTAVAIL ? fmt::format("{}:{}", host, port) : fmt::format("port {}", port),
      why));
}

Socket Socket::connect(const std::string& host, int port, Deadline deadline, std::string& why) {
  const Addresses addresses = resolve(host, port, 0, why);
  for (const addrinfo* a = addresses.get(); a; a = a->ai_next) {
    Socket s(::socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol));
    if (!s) {
      why = error_text(errno);
      continue;
    }
    // An address that drops packets must not use up the time of the other addresses of the name.
    const auto soon = std::min(deadline, std::chrono::steady_clock::now() + std::chrono::seconds(5));
    int error = ::connect(s.fd(), a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      // The connection is established when the socket is writable and SO_ERROR is 0.
      error = ETIMEDOUT;
      socklen_t size = sizeof error;
      if (ready(s.fd(), POLLOUT, soon)) getsockopt(s.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) {
      s.prepare();
      return s;
    }
    why = error_text(error);
  }
  return {};
}

int Socket::local_port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

Socket Socket::accept(std::string& host, std::string& port, int& error) const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  Socket s(::accept4(fd_, reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  error = s ? 0 : errno;
  if (!s) return s;
  s.prepare();
  name(address, size, host, port);
  return s;
}

bool Socket::send(const std::string& bytes, Deadline deadline, std::string& why) const {
  size_t sent = 0;
  while (sent < bytes.size()) {
    // A connection that the peer has closed gives EPIPE instead of the signal SIGPIPE.
    const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EINTR) {
      if (!ready(fd_, POLLOUT, deadline)) {
        why = "it took no data in time";
        return false;
      }
    } else {
      why = error_text(errno);
      return false;
    }
  }
  return true;
}

bool Socket::receive(std::string& to, Deadline deadline, std::string& why) const {
  char block[1 << 14];
  for (;;) {
    const ssize_t n = ::recv(fd_, block, sizeof block, 0);
    if (n > 0) {
      to.append(block, static_cast<size_t>(n));
      return true;
    }
    if (n == 0) {
      why = "it closed the connection";
      return false;
    }
    // Reads before it polls: data that is there needs no further system call.
    if (errno != EAGAIN && errno != EINTR) {
      why = error_text(errno);
      return false;
    }
    if (!ready(fd_, POLLIN, deadline)) {
      why = "it did not answer in time";
      return false;
    }
  }
}

}  // namespace sherd
