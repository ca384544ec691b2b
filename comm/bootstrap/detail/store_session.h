// One connection to rank 0's store, without its socket: a state machine over bytes. Private to comm/.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include <sherd/comm/bootstrap/detail/store_table.h>
#include <sherd/comm/bootstrap/detail/store_wire.h>

namespace sherd {

/// State shared by the connections of one store. All but the table belongs to the server's thread.
struct StoreJob {
  int size = 0;
  std::string name;    // as LaunchEnvironment::job, at most store_wire::kMaxJob bytes
  std::string secret;  // empty: every client is accepted
  StoreTable table = {};
  std::set<int> present = {};  // ranks that are connected
};

/// State of the protocol on the server's side. A client is a stranger until it has proved that it knows the
/// secret, and is a rank of the job that is not connected already. Only then may it use the table. Memory is
/// bounded: some hundred bytes for a stranger; for a rank one request of the longest kind and one reply.
/// While a reply waits, no further request is answered.
class StoreSession {
 public:
  /// Nonce: fresh (store_proof::random_bytes()).
  StoreSession(StoreJob& job, std::string nonce);
  /// Lets its rank connect again.
  ~StoreSession();
  StoreSession(const StoreSession&) = delete;

  /// Takes bytes from the client, while wants_input().
  void receive(std::string_view bytes);
  bool wants_input() const { return (state_ != State::over) && pending().empty(); }
  /// Returns the bytes to send to the client. sent() removes sent bytes from the front, which may append
  /// more.
  std::string_view pending() const { return std::string_view(out_).substr(sent_); }
  void sent(size_t bytes);

  /// -1 for a stranger.
  int rank() const { return rank_; }
  /// The rank has sent its shutdown message.
  bool leaving() const { return leaving_; }
  /// Returns whether the session has ended: input is ignored. complaint() has the reason; pending() may hold
  /// it for the client.
  bool over() const { return state_ == State::over; }
  /// Returns whether it ended with a reply that names the reason; the client needs time to read it.
  bool refused() const { return refused_; }
  const std::string& complaint() const { return complaint_; }

  /// Returns the number of bytes that were received and not yet answered.
  size_t unanswered() const { return in_.size(); }

 private:
  enum class State { opening, hello, member, over };
  void work();
  void answer(const std::string& frame);
  void answer_hello(const store_wire::Hello& hello);
  void end(std::string complaint);
  void refuse(const store_wire::Hello& hello, store_wire::Welcome welcome, const std::string& complaint);

  StoreJob& job_;
  const store_wire::Opening own_;
  store_wire::Opening theirs_;
  State state_ = State::opening;
  int rank_ = -1;
  bool leaving_ = false, refused_ = false;
  std::string in_, out_, complaint_;
  size_t sent_ = 0;  // of out_: a long reply is sent in many pieces
};

}  // namespace sherd
