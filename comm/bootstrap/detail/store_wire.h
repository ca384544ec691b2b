// Wire format of the store: frames of a 4-byte little-endian length and a body. Client and server open with a
// frame each, the client's first; its hello follows, and the server's welcome; then requests and replies
// alternate. Private to comm/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <sherd/comm/bootstrap/store.h>

namespace sherd::store_wire {

constexpr size_t kLengthBytes = 4;
/// Sizes of nonces and proofs.
constexpr size_t kNonceBytes = 32, kProofBytes = 32;
constexpr size_t kMaxJob = 256;
constexpr size_t kMaxReason = 512;
/// Longest bodies that a client, and a server, sends before the other side is authenticated.
constexpr size_t kMaxHello = 4 + 4 + 1 + kProofBytes + kMaxJob;
constexpr size_t kMaxWelcome = 1 + 1 + kProofBytes + kMaxReason;
constexpr size_t kMaxRequest = Store::kMaxKey + Store::kMaxValue + 64;
constexpr size_t kMaxReply = Store::kMaxTotal;

/// First frame of each side: the protocol's version, and a nonce against replayed proofs.
struct Opening {
  std::string nonce;  // kNonceBytes
};
/// The client's identity.
struct Hello {
  int rank = 0, size = 0;
  std::string job;    // no longer than kMaxJob; empty: any
  std::string proof;  // kProofBytes; empty: the client has no secret
};
/// The server's answer to a hello.
struct Welcome {
  /// secret: the client has no secret, or another. misfit: the right secret, but a rank that the job does not
  /// have, or that is connected already.
  enum class Verdict : uint8_t { accepted, misfit, secret };
  Verdict verdict = Verdict::secret;
  std::string proof;   // kProofBytes; empty: the server has no secret, or the client has not proved its own
  std::string reason;  // of a refusal; no longer than kMaxReason
};

/// Encode complete frames.
std::string encode(const Opening& opening);
std::string encode(const Hello& hello);
std::string encode(const Welcome& welcome);
std::string encode(const StoreRequest& request);
std::string encode(const StoreReply& reply);
/// Decode a body; nothing when it is malformed. Allocates no more than the body's own size.
std::optional<Opening> decode_opening(std::string_view body);
std::optional<Hello> decode_hello(std::string_view body);
std::optional<Welcome> decode_welcome(std::string_view body);
std::optional<StoreRequest> decode_request(std::string_view body);
std::optional<StoreReply> decode_reply(std::string_view body);

/// Takes the body of the first complete frame off the front of `buffer`. `too_long` when its length is over
/// `most`: nothing more can be read then.
std::optional<std::string> take_frame(std::string& buffer, size_t most, bool& too_long);

/// A text received from a peer, made fit for a message: no control characters, at most `most` bytes.
std::string printable(std::string_view text, size_t most);

}  // namespace sherd::store_wire
