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

/// Both sides' openings and what the client says about itself: what a proof is about.
struct Talk {
  const store_wire::Opening &client, &server;
  const store_wire::Hello& hello;  // its proof does not matter
};

/// HMAC-SHA256 under the secret of role, server's nonce, client's nonce, rank, size and job. The fresh nonces
/// make an old proof worthless, the roles the other side's own. Empty when libcrypto fails, which proves
/// nothing.
std::string proof(const std::string& secret, Role role, const Talk& talk);

/// Whether `given` is that proof. Takes as long whichever bytes differ.
bool proves(const std::string& given, const std::string& secret, Role role, const Talk& talk);

}  // namespace sherd::store_proof
