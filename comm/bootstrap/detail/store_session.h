// One connection to rank 0's store, without its socket: a state machine over bytes. Private to comm/.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include <sherd/comm/bootstrap/detail/store_table.h>
#include <sherd/comm/bootstrap/detail/store_wire.h>

namespace sherd {

/// What the connections of one store share. All but the table belongs to the thread that has the connections.
struct StoreJob {
  int size = 0;
  std::string name;    // as LaunchEnvironment::job, at most store_wire::kMaxJob bytes
  std::string secret;  // empty: everybody is believed
  StoreTable table = {};
  std::set<int> present = {};  // ranks that are connected
};

/// The protocol's state on the server's side. A client is a stranger until it has proved that it knows the
/// secret and is a rank that the job has and that is not connected already; only then is the table touched.
/// What is held is bounded: of a stranger some hundred bytes; of a rank a request of the longest kind and one
/// reply, for as long as a reply waits nothing further is answered.
class StoreSession {
 public:
  /// Nonce: fresh (store_proof::random_bytes()).
  StoreSession(StoreJob& job, std::string nonce);
  /// Its rank may connect again.
  ~StoreSession();
  StoreSession(const StoreSession&) = delete;

  /// What the client sent, while wants_input().
  void receive(std::string_view bytes);
  bool wants_input() const { return (state_ != State::over) && pending().empty(); }
  /// What is to be sent to the client; sent() takes off the front what was, which may bring more.
  std::string_view pending() const { return std::string_view(out_).substr(sent_); }
  void sent(size_t bytes);

  /// -1 for a stranger.
  int rank() const { return rank_; }
  /// The rank has sent its shutdown message.
  bool leaving() const { return leaving_; }
  /// Nothing of this client is read any more; complaint() says why, pending() may tell the client.
  bool over() const { return state_ == State::over; }
  /// It is over, and pending() tells or told the client why: it needs time to read that.
  bool refused() const { return refused_; }
  const std::string& complaint() const { return complaint_; }

  /// Bytes held that were received and not yet answered.
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
  size_t sent_ = 0;  // of out_: a long reply leaves in many pieces
};

}  // namespace sherd
