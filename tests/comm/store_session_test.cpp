// The parts of the job's store that need no socket: messages, proofs, the server's side of a connection, the
// log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>

#include <sherd/comm/bootstrap/detail/drop_log.h>
#include <sherd/comm/bootstrap/detail/store_proof.h>
#include <sherd/comm/bootstrap/detail/store_session.h>
#include <sherd/comm/bootstrap/detail/store_wire.h>

#include "comm/store_lines.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kStranger = DropLog::Kind::stranger;

TEST(StoreWire, FramesThatAreCutOrChangedAreRefusedOrRead) {
  const std::string request =
      store_wire::encode(StoreRequest{StoreRequest::Op::set, -5, "key", "value"}).substr(4);
  StoreReply reply{StoreReply::Status::ok, 9, {"one", ""}};
  const std::string answer = store_wire::encode(reply).substr(4);
  ASSERT_TRUE(store_wire::decode_request(request));
  EXPECT_EQ(store_wire::decode_request(request)->value, "value");
  EXPECT_EQ(store_wire::decode_request(request)->number, -5);
  EXPECT_EQ(store_wire::decode_reply(answer)->values, reply.values);
  for (size_t n = 0; n < answer.size(); ++n) EXPECT_FALSE(store_wire::decode_reply(answer.substr(0, n)));
  for (size_t n = 0; n < 16; ++n) EXPECT_FALSE(store_wire::decode_request(request.substr(0, n)));
  for (size_t n = 0; n < answer.size(); ++n) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = answer;
      changed[n] = static_cast<char>(changed[n] ^ (1 << bit));
      (void)store_wire::decode_reply(changed);
      (void)store_wire::decode_request(changed);
      (void)store_wire::decode_hello(changed);
      (void)store_wire::decode_opening(changed);
      (void)store_wire::decode_welcome(changed);
    }
  }
  bool too_long = false;
  std::string huge("\xff\xff\xff\xff", 4);
  EXPECT_FALSE(store_wire::take_frame(huge, 100, too_long));
  EXPECT_TRUE(too_long);
}

TEST(StoreProof, TheServersProofIsNotTheClients) {
  const store_wire::Opening client{std::string(32, 'a')}, server{std::string(32, 'b')};
  const store_wire::Hello hello{1, 2, "job", {}}, other{1, 2, "jo", {}}, rank{2, 2, "job", {}};
  const store_proof::Talk talk{client, server, hello}, swapped{server, client, hello};
  using store_proof::Role;
  const std::string proof = store_proof::proof(kSecret, Role::client, talk);
  EXPECT_EQ(proof.size(), store_wire::kProofBytes);
  EXPECT_TRUE(store_proof::proves(proof, kSecret, Role::client, talk));
  EXPECT_FALSE(store_proof::proves(proof, kSecret, Role::server, talk));
  EXPECT_FALSE(store_proof::proves(proof, kSecret + " ", Role::client, talk));
  EXPECT_FALSE(store_proof::proves(proof, kSecret, Role::client, swapped));
  EXPECT_FALSE(store_proof::proves(proof, kSecret, Role::client, {client, server, other}));
  EXPECT_FALSE(store_proof::proves(proof, kSecret, Role::client, {client, server, rank}));
  EXPECT_FALSE(store_proof::proves(proof.substr(1), kSecret, Role::client, talk));
  EXPECT_FALSE(store_proof::proves({}, kSecret, Role::client, talk));
  EXPECT_NE(store_proof::random_bytes(), store_proof::random_bytes());
}

TEST(DropLog, CountsWhereTheyAreMany) {
  Lines lines;
  const auto start = Clock::now();
  {
    DropLog log(lines.log());
    for (int i = 0; i < 1000; ++i)
      log.dropped(kStranger, "192.0.2.1", std::to_string(i), "it said nothing", start);
    log.dropped(kStranger, "192.0.2.2", "7", "it said nothing", start);
    EXPECT_EQ(lines.all().size(), 16u);
    EXPECT_EQ(lines.all().front(), "store: dropped a connection from 192.0.2.1 port 0: it said nothing");
    log.look(start + 9s);
    EXPECT_EQ(lines.all().size(), 16u);
    log.look(start + 10s);
    EXPECT_EQ(lines.all().size(), 18u);
    EXPECT_EQ(lines.all()[16], "store: dropped 984 more connections from 192.0.2.1");
    EXPECT_EQ(lines.all()[17], "store: dropped 1 more connection from 192.0.2.2");
    for (int i = 0; i < 100; ++i)
      log.dropped(kStranger, "192.0.2." + std::to_string(i), "1", "late", start + 20s);
  }
  EXPECT_EQ(lines.all().size(), 18u + 16 + DropLog::kHosts + 1) << "what was held back is told at the end";
  EXPECT_EQ(lines.all().back(), "store: dropped 76 more connections from other addresses");
  DropLog failing([](const std::string&) { throw std::runtime_error("no more room"); });
  failing.dropped(kStranger, "192.0.2.1", "1", "it said nothing", start);
}

TEST(DropLog, NoNumberOfStrangersHidesARankThatIsRefused) {
  Lines lines;
  const auto start = Clock::now();
  DropLog log(lines.log());
  for (int i = 0; i < 1000; ++i) log.dropped(kStranger, "192.0.2.1", "1", "it said nothing", start);
  for (int i = 0; i < 18; ++i)
    log.dropped(DropLog::Kind::refused_rank, "192.0.2.7", "2", "it does not know this job's secret",
                start + 1s);
  ASSERT_EQ(lines.all().size(), 16u + 16);
  EXPECT_EQ(lines.all()[16],
            "store: dropped a connection from 192.0.2.7 port 2: it does not know this job's secret");
  log.look(start + 10s);
  ASSERT_EQ(lines.all().size(), 32u + 2);
  EXPECT_EQ(lines.all()[32], "store: dropped 984 more connections from 192.0.2.1");
  EXPECT_EQ(lines.all()[33],
            "store: dropped 2 more connections from 192.0.2.7 that said which rank they are");
}

/// A session that has gone through the handshake as this rank.
void become(StoreSession& session, int rank, int size) {
  const store_wire::Opening client{std::string(32, 'c')}, server{std::string(32, 's')};
  store_wire::Hello hello{rank, size, {}, {}};
  hello.proof = store_proof::proof(kSecret, store_proof::Role::client, {client, server, hello});
  session.receive(store_wire::encode(client));
  EXPECT_EQ(session.pending(), store_wire::encode(server));
  session.sent(session.pending().size());
  session.receive(store_wire::encode(hello));
  session.sent(session.pending().size());
  EXPECT_EQ(session.rank(), rank);
}

TEST(StoreSession, HoldsNoMoreThanOneReplyOfWhoDoesNotRead) {
  StoreJob job{3, {}, kSecret};
  job.table.apply({StoreRequest::Op::set, 0, "k", std::string(Store::kMaxValue, 'v')});
  StoreSession session(job, std::string(32, 's'));
  become(session, 2, 3);
  constexpr int kQuestions = 20;
  std::string questions;
  for (int i = 0; i < kQuestions; ++i)
    questions += store_wire::encode(StoreRequest{StoreRequest::Op::get, 0, "k", {}});
  session.receive(questions);
  EXPECT_FALSE(session.wants_input()) << "until the reply is read";
  EXPECT_LT(session.pending().size(), Store::kMaxValue + 64);
  session.sent(10);
  EXPECT_FALSE(session.wants_input());
  int replies = 0;
  for (; !session.pending().empty(); ++replies) session.sent(session.pending().size());
  EXPECT_EQ(replies, kQuestions);
  EXPECT_TRUE(session.wants_input());
  EXPECT_EQ(session.unanswered(), 0u);
}

TEST(StoreSession, TouchesNothingBeforeItKnowsWhoAsks) {
  StoreJob job{3, {}, kSecret};
  const std::string request = store_wire::encode(StoreRequest{StoreRequest::Op::set, 0, "k", "v"});
  for (const std::string& before :
       {std::string(), store_wire::encode(store_wire::Opening{std::string(32, 'c')}),
        store_wire::encode(store_wire::Opening{std::string(32, 'c')}) +
            store_wire::encode(store_wire::Hello{2, 3, {}, std::string(32, 'p')})}) {
    StoreSession session(job, std::string(32, 's'));
    session.receive(before + request);
    while (!session.pending().empty()) session.sent(session.pending().size());
    EXPECT_EQ(session.rank(), -1);
    EXPECT_TRUE(session.over());
    EXPECT_NE(session.complaint(), "");
    EXPECT_TRUE(job.present.empty());
    EXPECT_EQ(job.table.apply({StoreRequest::Op::get, 0, "k", {}}).status, StoreReply::Status::absent);
  }
  {
    StoreSession session(job, std::string(32, 's'));
    become(session, 2, 3);
    EXPECT_TRUE(job.present.contains(2));
    session.receive(request);
  }
  EXPECT_TRUE(job.present.empty()) << "the rank is free again";
  EXPECT_EQ(job.table.apply({StoreRequest::Op::get, 0, "k", {}}).status, StoreReply::Status::ok);
}

}  // namespace
}  // namespace sherd::test
