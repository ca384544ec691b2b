// Mutual proof that both ends of a store's connection know the job's secret, without sending it. Private to
// comm/.
#pragma once

#include <string>

#include <sherd/comm/bootstrap/detail/store_wire.h>

namespace sherd::store_proof {

/// store_wire::kNonceBytes unpredictable bytes. @throws CommError when the system has no source of
/// randomness.
std::string random_bytes();

enum class Role { client, server };

/// Content of a proof: the openings of both sides and the client's hello.
struct Talk {
  const store_wire::Opening &client, &server;
  const store_wire::Hello& hello;  // its proof is not part of it
};

/// HMAC-SHA256, keyed by the secret, of role, server's nonce, client's nonce, rank, size and job. The fresh
/// nonces make an old proof invalid; the role makes the other side's proof invalid. Empty when libcrypto
/// fails; an empty proof is never valid.
std::string proof(const std::string& secret, Role role, const Talk& talk);

/// Returns whether `given` is that proof. The duration does not depend on the bytes that differ.
bool proves(const std::string& given, const std::string& secret, Role role, const Talk& talk);

}  // namespace sherd::store_proof
