// What goes over a store's sockets: frames of a 4-byte little-endian length and a body. A client's first
// frame is a hello; then requests and replies take turns. Private to comm/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <sherd/comm/bootstrap/store.h>

namespace sherd::store_wire {

constexpr size_t kLengthBytes = 4;
constexpr size_t kMaxJob = 256;
constexpr size_t kMaxHello = kMaxJob + 64;
constexpr size_t kMaxRequest = Store::kMaxKey + Store::kMaxValue + 64;
constexpr size_t kMaxReply = Store::kMaxTotal;

struct Hello {
  int rank = 0, size = 0;
  std::string job;  // no longer than kMaxJob; empty: any
};

/// Complete frames.
std::string encode(const Hello& hello);
std::string encode(const StoreRequest& request);
std::string encode(const StoreReply& reply);
/// Of a body; nothing when it is malformed. Allocates no more than the body's own size.
std::optional<Hello> decode_hello(std::string_view body);
std::optional<StoreRequest> decode_request(std::string_view body);
std::optional<StoreReply> decode_reply(std::string_view body);

/// Takes the body of the first complete frame off the front of `buffer`. `too_long` when its length is over
/// `most`: nothing more can be read then.
std::optional<std::string> take_frame(std::string& buffer, size_t most, bool& too_long);

}  // namespace sherd::store_wire
