// Sockets as owned handles. Private to comm/.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <string>
#include <utility>

namespace sherd {

/// Returns whether this is an address, not a name.
bool is_address(const std::string& host);
/// Returns whether this is "localhost", 127.x.x.x or ::1, which other hosts cannot reach.
bool is_loopback(const std::string& host);

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

  using Deadline = std::chrono::steady_clock::time_point;
  /// A non-blocking socket that listens on an address or "localhost"; on every interface for an empty host, a
  /// name, or an address that is not this host's. Port 0: any. @throws CommError
  static Socket listen(const std::string& host, int port);
  /// Tries every address of the host once, until the deadline. Empty on failure, with `why`.
  static Socket connect(const std::string& host, int port, Deadline deadline, std::string& why);
  /// Sets the options of a connection: no delay; dead hosts are detected within half a minute.
  void prepare() const;
  int local_port() const;
  /// The next connection that waits at this listener, prepared, with its numeric address and port; empty when
  /// none waits, or on failure with `error`.
  Socket accept(std::string& host, std::string& port, int& error) const;

  /// Sends all of it. False on failure or at the deadline, with `why`.
  bool send(const std::string& bytes, Deadline deadline, std::string& why) const;
  /// Appends the available bytes, at least one. False on failure, end of stream or at the deadline, with
  /// `why`.
  bool receive(std::string& to, Deadline deadline, std::string& why) const;

 private:
  int fd_ = -1;
};

}  // namespace sherd
