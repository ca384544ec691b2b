// Any bytes on a connection to a job's store are answered, or end the connection: the decoders, and the
// server's side of the protocol, before a client has proved that it knows the job's secret and after.
#include <algorithm>
#include <stdexcept>

#include <sherd/comm/bootstrap/detail/store_proof.h>
#include <sherd/comm/bootstrap/detail/store_session.h>

namespace {

using namespace sherd;
namespace wire = store_wire;

void require(bool good, const char* what) {
  if (!good) throw std::logic_error(what);
}

/// Expects that a decoded message is encoded to the same bytes.
template <class Decoded>
void expect_same(const Decoded& decoded, std::string_view body) {
  if (decoded)
    require(wire::encode(*decoded).substr(wire::kLengthBytes) == body,
            "a message is not encoded as it is read");
}

void decode(std::string_view body) {
  expect_same(wire::decode_opening(body), body);
  expect_same(wire::decode_hello(body), body);
  expect_same(wire::decode_welcome(body), body);
  expect_same(wire::decode_request(body), body);
  expect_same(wire::decode_reply(body), body);
  require(wire::printable(body, 100).size() <= 100, "a text is longer than asked for");
}

const std::string kNonce(wire::kNonceBytes, 's');

/// A client that the session is to take for rank 2, or not to.
void greet(StoreSession& session, const StoreJob& job) {
  const wire::Opening client{std::string(wire::kNonceBytes, 'c')}, server{kNonce};
  wire::Hello hello{2, job.size, job.name, {}};
  hello.proof = store_proof::proof(job.secret, store_proof::Role::client, {client, server, hello});
  session.receive(wire::encode(client) + wire::encode(hello));
  while (!session.pending().empty()) session.sent(session.pending().size());
  require(session.rank() == 2, "a rank of the job was refused");
}

/// Gives the bytes to the session in pieces, and takes off what it has to say in pieces; both sizes are in
/// the input.
void talk(StoreSession& session, StoreJob& job, std::string_view input) {
  while (!input.empty()) {
    const auto sizes = static_cast<unsigned char>(input[0]);
    input.remove_prefix(1);
    if (session.wants_input()) {
      const size_t piece = std::min<size_t>(input.size(), sizes & 0x80 ? 1 + (sizes & 7) : 256);
      session.receive(input.substr(0, piece));
      input.remove_prefix(piece);
    } else {
      require(session.over() || !session.pending().empty(), "a session waits for nothing");
      if (session.pending().empty()) break;
      session.sent(std::min<size_t>(session.pending().size(), 1 + 16 * (sizes & 0x7f)));
    }
    const bool stranger = session.rank() < 0;
    require(
        session.unanswered() <= wire::kLengthBytes + 256 + (stranger ? wire::kMaxHello : wire::kMaxRequest),
        "a session holds more than a message");
    require(session.over() != session.complaint().empty(), "a session ends without a reason");
    require(!stranger || job.present.empty(), "a stranger has become a rank");
    require(!stranger || session.pending().size() <= wire::kLengthBytes + wire::kMaxWelcome,
            "a stranger is told more than a welcome");
  }
}

void converse(std::string_view input, const std::string& secret, bool greeted) {
  StoreJob job{3, "job", secret};
  {
    StoreSession session(job, kNonce);
    if (greeted) greet(session, job);
    talk(session, job, input);
    // A proof cannot be guessed.
    if (!greeted && !secret.empty()) require(session.rank() < 0, "a stranger has become a rank");
    if (session.rank() < 0) require(job.table.bytes() == 0, "a stranger has changed the table");
  }
  require(job.present.empty(), "a rank is there without its connection");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  decode(bytes);
  converse(bytes, "a secret", false);
  converse(bytes, "a secret", true);
  converse(bytes, {}, false);
  return 0;
}
