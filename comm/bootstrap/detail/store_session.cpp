#include <sherd/comm/bootstrap/detail/store_session.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <sherd/comm/bootstrap/detail/store_proof.h>

namespace sherd {

using store_proof::Role;
using store_wire::Hello;
using store_wire::Welcome;

namespace {

/// Returns why an authenticated rank does not belong to this job; "" when it does.
std::string misfit(const StoreJob& job, const Hello& hello) {
  if (hello.size != job.size) return fmt::format("this job has {} processes, not {}", job.size, hello.size);
  if (!job.name.empty() && !hello.job.empty() && hello.job != job.name)
    return fmt::format("this is job \"{}\", not \"{}\"", store_wire::printable(job.name, 200),
                       store_wire::printable(hello.job, 200));
  if (hello.rank < 1 || hello.rank >= job.size)
    return fmt::format("rank {} does not connect here; ranks 1 to {} do", hello.rank, job.size - 1);
  if (job.present.contains(hello.rank)) return fmt::format("there is a rank {} already", hello.rank);
  return {};
}

}  // namespace

StoreSession::StoreSession(StoreJob& job, std::string nonce) : job_(job), own_{std::move(nonce)} {}

StoreSession::~StoreSession() {
  if (rank_ >= 0) job_.present.erase(rank_);
}

// The server's thread calls all functions of a session; a session does no I/O of its own.
void StoreSession::receive(std::string_view bytes) {
  if (over()) return;
  in_ += bytes;
  work();
}

// A reply is sent entirely before the next request is handled: a client cannot make the server buffer more
// than one reply.
void StoreSession::sent(size_t bytes) {
  sent_ += bytes;
  if (!pending().empty()) return;
  out_.clear();
  sent_ = 0;
  work();
}

void StoreSession::work() {
  while (wants_input()) {
    // Clients that are not proven ranks may send only short frames, which bounds the memory they can take.
    const bool stranger = state_ != State::member;
    bool too_long = false;
    const auto frame =
        store_wire::take_frame(in_, stranger ? store_wire::kMaxHello : store_wire::kMaxRequest, too_long);
    if (too_long) return end("it sent what no rank sends");
    if (!frame) return;
    answer(*frame);
  }
}

// The protocol's states: opening (nonces are exchanged), hello (the client names its rank and proves the
// secret), member (requests). Errors end the session.
void StoreSession::answer(const std::string& frame) {
  if (state_ == State::opening) {
    auto opening = store_wire::decode_opening(frame);
    if (!opening) return end("it does not speak this version of sherd's protocol");
    theirs_ = std::move(*opening);
    out_ = store_wire::encode(own_);
    state_ = State::hello;
  } else if (state_ == State::hello) {
    const auto hello = store_wire::decode_hello(frame);
    if (!hello) return end("it sent what no rank sends");
    answer_hello(*hello);
  } else {
    const auto request = store_wire::decode_request(frame);
    if (!request) return end("it sent what no rank sends");
    // From here on the end of the connection is not a failure.
    if (request->op == StoreRequest::Op::bye) leaving_ = true;
    out_ = store_wire::encode(job_.table.apply(*request));
  }
}

void StoreSession::answer_hello(const Hello& hello) {
  // The proof covers both nonces and the greeting, so that a recorded proof cannot be replayed.
  const store_proof::Talk talk{theirs_, own_, hello};
  Welcome welcome;
  if (!job_.secret.empty()) {
    if (hello.proof.empty()) {
      welcome.reason = "the job has a secret, and this rank has none";
      return refuse(hello, welcome, "it has no secret, and this job has one (SHERD_JOB_SECRET)");
    }
    if (!store_proof::proves(hello.proof, job_.secret, Role::client, talk)) {
      welcome.reason = "the job has another secret than this rank";
      return refuse(hello, welcome, "it does not know this job's secret (SHERD_JOB_SECRET)");
    }
    welcome.proof = store_proof::proof(job_.secret, Role::server, talk);
  } else if (!hello.proof.empty()) {
    welcome.reason = "this rank has a secret, and rank 0 has none";
    return refuse(hello, welcome, "it has a secret, and this rank 0 has none (SHERD_JOB_SECRET)");
  }
  // The secret is checked before the rank's data: without it a client learns nothing about the job.
  welcome.reason = misfit(job_, hello);
  welcome.verdict = Welcome::Verdict::misfit;
  if (!welcome.reason.empty()) return refuse(hello, welcome, welcome.reason);
  rank_ = hello.rank;
  // A rank is present until its session is destroyed; a second client with its number is refused.
  job_.present.insert(rank_);
  state_ = State::member;
  welcome.verdict = Welcome::Verdict::accepted;
  out_ = store_wire::encode(welcome);
}

void StoreSession::refuse(const Hello& hello, Welcome welcome, const std::string& complaint) {
  welcome.reason.resize(std::min(welcome.reason.size(), store_wire::kMaxReason));
  end(fmt::format("it says that it is rank {} of {}: {}", hello.rank, hello.size, complaint));
  // The session is over, but pending() still holds the reason for the client.
  out_ = store_wire::encode(welcome);
  refused_ = true;
}

void StoreSession::end(std::string complaint) {
  complaint_ = std::move(complaint);
  state_ = State::over;
  in_.clear();
  in_.shrink_to_fit();
}

}  // namespace sherd
