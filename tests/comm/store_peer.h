// One end of a connection to a job's store, said frame by frame: what clients of the store do, and what they
// do not.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include <sherd/comm/bootstrap/detail/socket.h>
#include <sherd/comm/bootstrap/detail/store_proof.h>
#include <sherd/comm/bootstrap/detail/store_wire.h>

namespace sherd::test {

class StorePeer {
 public:
  /// Connects to a store on this host.
  explicit StorePeer(int port) : StorePeer(connected(port)) {}
  /// Over a connection that is there.
  explicit StorePeer(Socket socket) : socket_(std::move(socket)) {}

  const Socket& socket() const { return socket_; }
  bool send(const std::string& bytes) const { return socket_.send(bytes, soon(), ignored_); }
  /// The body of the next frame; nothing when the connection ends first, or nothing comes for long.
  std::optional<std::string> frame() {
    for (;;) {
      bool too_long = false;
      if (auto body = store_wire::take_frame(buffer_, store_wire::kMaxRequest, too_long)) return body;
      if (too_long || !socket_.receive(buffer_, soon(), ignored_)) return std::nullopt;
    }
  }
  /// Returns whether the other side closes the connection, whatever it sends before.
  bool is_closed() {
    std::string why;
    while (socket_.receive(buffer_, soon(), why)) {
    }
    return why != "it did not answer in time";
  }

  /// A client's side of the handshake, with a proof under `secret` unless that is empty. The server's answer.
  std::optional<store_wire::Welcome> greet(store_wire::Hello hello, const std::string& secret = {}) {
    const store_wire::Opening own{std::string(store_wire::kNonceBytes, 'c')};
    send(store_wire::encode(own));
    const auto body = frame();
    const auto theirs = body ? store_wire::decode_opening(*body) : std::nullopt;
    if (!theirs) return std::nullopt;
    if (!secret.empty())
      hello.proof = store_proof::proof(secret, store_proof::Role::client, {own, *theirs, hello});
    said_ = store_wire::encode(own) + store_wire::encode(hello);
    send(store_wire::encode(hello));
    const auto answer = frame();
    return answer ? store_wire::decode_welcome(*answer) : std::nullopt;
  }
  /// All that greet() sent.
  const std::string& said() const { return said_; }

  /// A server's side of it: accepts any client, and answers with this proof.
  bool welcome(const std::string& proof = {}) {
    if (!frame()) return false;
    send(store_wire::encode(store_wire::Opening{std::string(store_wire::kNonceBytes, 's')}));
    if (!frame()) return false;
    return send(store_wire::encode(store_wire::Welcome{store_wire::Welcome::Verdict::accepted, proof, {}}));
  }

 private:
  static Socket::Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }
  static Socket connected(int port) {
    std::string why;
    Socket s = Socket::connect("127.0.0.1", port, soon(), why);
    EXPECT_TRUE(s) << why;
    return s;
  }

  Socket socket_;
  std::string buffer_, said_;
  mutable std::string ignored_;
};

}  // namespace sherd::test
