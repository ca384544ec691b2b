// Control messages between the ranks of a world. Private to comm/mpi.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <sherd/comm/core/detail/call.h>

namespace sherd::mpi {

/// Calls that are numbered together. A send and its receive are two lanes: each side tells the other.
enum class Lane : uint8_t { collective, split, send, receive };

/// One call of a group, as its ranks number it.
struct CallNumber {
  Lane lane = Lane::collective;
  int peer = -1;  // rank in the group that sends or receives the letter, for messages
  int64_t sequence = 0;

  auto operator<=>(const CallNumber&) const = default;
};

struct Letter {
  enum class Kind : uint8_t {
    call,      // a rank has come to a call
    withdraw,  // it has given that call up
    left,      // a world rank makes no further call
    goodbye    // a process writes no further letter
  };
  Kind kind = Kind::call;
  /// Of which group, from and to which of its ranks; left: `from` is the world rank.
  uint64_t group = 0;
  int from = 0, to = 0;
  Lane lane = Lane::collective;
  int64_t sequence = 0;
  /// With this tag the receiver of the letter is to send its data for the call.
  int tag = 0;
  /// Without tensors.
  comm::Call call = {};
  /// Lane::collective: how long the sender waited for the others in the group's collective before this one.
  int64_t waited_ns = 0;
  /// Lane::split.
  int color = 0, key = 0;
  /// left: what the rank called last (FlightRecorder::last()).
  std::string last = {};
  /// When it came, by the receiver's clock; not sent.
  std::chrono::steady_clock::time_point came = {};
};

std::string encode(const Letter& letter);
/// @throws CommError for bytes that encode() has not made, such as another version's.
Letter decode(const std::string& bytes);

}  // namespace sherd::mpi
