// A port for a test's store that no other process takes meanwhile.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <sherd/comm/bootstrap/detail/socket.h>

namespace sherd::test {

/// While this exists the system does not hand out the port, and connections to it are refused. A store that
/// is given its number can listen on it, on any address of this host: Linux lets sockets that reuse addresses
/// (Socket::listen does) share a port of which none listens yet.
class ReservedPort {
 public:
  ReservedPort() {
    if (!reserve<sockaddr_in6>(AF_INET6)) {  // which also reserves it of IPv4
      EXPECT_TRUE(reserve<sockaddr_in>(AF_INET)) << "no port is free";
    }
  }
  int number() const { return socket_.local_port(); }

 private:
  template <class Address>
  bool reserve(int family) {
    const int on = 1, off = 0;
    socket_ = Socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket_) return false;
    ::setsockopt(socket_.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (family == AF_INET6) ::setsockopt(socket_.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_storage any{};
    any.ss_family = static_cast<sa_family_t>(family);
    return ::bind(socket_.fd(), reinterpret_cast<const sockaddr*>(&any), sizeof(Address)) == 0;
  }

  Socket socket_;
};

}  // namespace sherd::test
