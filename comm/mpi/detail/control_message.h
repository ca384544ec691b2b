// Control messages between the ranks of a world. Private to comm/mpi.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <sherd/comm/core/detail/call.h>

namespace sherd::mpi {

/// Calls that are numbered together. A send and its receive are two lanes: each side sends its call to the
/// other.
enum class Lane : uint8_t { collective, split, send, receive };

/// Number of a call of a group, as its ranks count.
struct CallNumber {
  Lane lane = Lane::collective;
  int peer = -1;  // rank in the group that sends or receives, for messages
  int64_t sequence = 0;

  auto operator<=>(const CallNumber&) const = default;
};

/// Control message from a rank or process to another.
struct ControlMessage {
  enum class Kind : uint8_t {
    call,      // a rank has reached a call
    withdraw,  // it has aborted that call
    left,      // a world rank makes no further call
    shutdown   // a process sends no further control message
  };
  Kind kind = Kind::call;
  /// Group, sender and receiver (ranks in the group); left: `from` is the world rank.
  uint64_t group = 0;
  int from = 0, to = 0;
  Lane lane = Lane::collective;
  int64_t sequence = 0;
  /// Tag with which the receiver of this message is to send its data for the call.
  int tag = 0;
  /// The call, without tensors.
  comm::Call call = {};
  /// Lane::collective: how long the sender waited for the others in the group's collective before this one.
  int64_t waited_ns = 0;
  /// Lane::split.
  int color = 0, key = 0;
  /// left: the rank's last call (FlightRecorder::last()).
  std::string last = {};
  /// Time of arrival, by the receiver's clock; not sent.
  std::chrono::steady_clock::time_point came = {};
};

std::string encode(const ControlMessage& message);
/// @throws CommError for bytes that encode() has not made, such as another version's.
ControlMessage decode(const std::string& bytes);

}  // namespace sherd::mpi
