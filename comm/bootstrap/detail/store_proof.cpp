#include <sherd/comm/bootstrap/detail/store_proof.h>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <unistd.h>

#include <cerrno>

#include <sherd/base/error.h>

namespace sherd::store_proof {
namespace {

// All but the job's name has one length, and the name comes last: different talks are different bytes.
std::string bytes_of(Role role, const Talk& talk) {
  std::string bytes = role == Role::client ? "sherd store client" : "sherd store server";
  bytes += talk.server.nonce + talk.client.nonce;
  for (const int n : {talk.hello.rank, talk.hello.size})
    for (int shift = 0; shift < 32; shift += 8)
      bytes.push_back(static_cast<char>(static_cast<unsigned>(n) >> shift));
  return bytes + talk.hello.job;
}

}  // namespace

std::string random_bytes() {
  std::string bytes(store_wire::kNonceBytes, '\0');
  if (::getentropy(bytes.data(), bytes.size()) != 0)
    throw CommError(fmt::format("store: the system gives no random bytes (error {})", errno));
  return bytes;
}

std::string proof(const std::string& secret, Role role, const Talk& talk) {
  const std::string bytes = bytes_of(role, talk);
  std::string code(store_wire::kProofBytes, '\0');
  unsigned length = 0;
  const auto* got = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                         reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                         reinterpret_cast<unsigned char*>(code.data()), &length);
  return got && length == code.size() ? code : std::string();
}

bool proves(const std::string& given, const std::string& secret, Role role, const Talk& talk) {
  const std::string right = proof(secret, role, talk);
  // CRYPTO_memcmp() takes equally long for all contents; the length is public.
  return !right.empty() && given.size() == right.size() &&
         CRYPTO_memcmp(given.data(), right.data(), right.size()) == 0;
}

}  // namespace sherd::store_proof
