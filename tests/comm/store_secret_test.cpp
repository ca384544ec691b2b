// The job's secret: who gets into the store, who does not, and what those who do not can do to it, which is
// nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/comm/bootstrap/detail/drop_log.h>
#include <sherd/comm/bootstrap/detail/store_session.h>
#include <sherd/comm/bootstrap/detail/tcp_store.h>
#include <sherd/kernels/device/error.h>

#include "comm/store_peer.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Clock = std::chrono::steady_clock;
using Verdict = store_wire::Welcome::Verdict;

const std::string kLoopback = "127.0.0.1", kSecret = "the secret of this job";

/// What a store tells.
class Lines {
 public:
  StoreLog log() {
    return [this](const std::string& line) {
      std::lock_guard lock(mutex_);
      lines_.push_back(line);
    };
  }
  std::vector<std::string> all() const {
    std::lock_guard lock(mutex_);
    return lines_;
  }
  /// Waits for so many, then a little for one too many.
  std::vector<std::string> wait(size_t count) const {
    for (const auto last = Clock::now() + 10s; all().size() < count && Clock::now() < last;)
      std::this_thread::sleep_for(5ms);
    std::this_thread::sleep_for(20ms);
    return all();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

LaunchEnvironment rank_of(int rank, int size, int port, const std::string& secret) {
  LaunchEnvironment e{rank, size, rank, kLoopback, port, true};
  e.secret = secret;
  return e;
}

template <class F>
std::string error_of(F f) {
  try {
    f();
    return "no error";
  } catch (const Error& e) {
    return e.what();
  }
}

int open_handles() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    count += !entry.path().empty();
  return count;
}

/// So many handles for this process, as long as this is there.
class Handles {
 public:
  explicit Handles(rlim_t count) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit other{count, before_.rlim_max};
    good_ = setrlimit(RLIMIT_NOFILE, &other) == 0;
  }
  ~Handles() { setrlimit(RLIMIT_NOFILE, &before_); }
  Handles(const Handles&) = delete;
  bool good() const { return good_; }

 private:
  rlimit before_{};
  bool good_ = false;
};

/// A store of three ranks with a secret, of which rank 1 is connected.
struct Guarded {
  explicit Guarded(std::chrono::milliseconds patience = 10s)
      : server(kLoopback, 0, 3, 1s, {}, {kSecret, lines->log(), 64, patience}),
        one(connect_store(rank_of(1, 3, server.port(), kSecret), 10s)),
        handles(open_handles()) {}
  /// The job goes on, nothing leaked and nothing was told but `count` lines, which are given back.
  std::vector<std::string> expect_unharmed(size_t count) {
    one->set("k", "v");
    EXPECT_EQ(server.get("k"), "v");
    EXPECT_FALSE(announced(server));
    const auto told = lines->wait(count);
    EXPECT_EQ(told.size(), count) << testing::PrintToString(told);
    expect_closed();
    return told;
  }
  void expect_closed() const {
    for (const auto last = Clock::now() + 5s; open_handles() > handles && Clock::now() < last;)
      std::this_thread::sleep_for(5ms);
    EXPECT_EQ(open_handles(), handles) << "connections are still held";
  }

  const std::shared_ptr<Lines> lines = std::make_shared<Lines>();
  ServerStore server;
  std::shared_ptr<Store> one;
  int handles;
};

TEST(JobSecret, RanksThatKnowItTalk) {
  Guarded job;
  const auto two = connect_store(rank_of(2, 3, job.server.port(), kSecret), 10s);
  two->set("from", "2");
  EXPECT_EQ(job.one->get("from"), "2");
  EXPECT_THAT(job.lines->all(), ElementsAre());
}

TEST(JobSecret, RanksWhoseSecretsDifferAreTold) {
  for (const std::string& theirs : {std::string(), kSecret + "!", std::string("x")}) {
    Guarded job;
    const std::string text = error_of([&] { connect_store(rank_of(2, 3, job.server.port(), theirs), 1h); });
    EXPECT_THAT(text,
                AllOf(HasSubstr("refuses rank 2"), HasSubstr("SHERD_JOB_SECRET"), Not(HasSubstr(kSecret))));
    EXPECT_THAT(text, HasSubstr(theirs.empty() ? "this rank has none" : "another secret than this rank"));
    EXPECT_THAT(
        job.expect_unharmed(1),
        ElementsAre(AllOf(HasSubstr("127.0.0.1 port"), HasSubstr("rank 2 of 3"),
                          HasSubstr(theirs.empty() ? "has no secret" : "does not know this job's secret"))));
  }
  Lines lines;
  ServerStore without(kLoopback, 0, 3, 1s, {}, {{}, lines.log()});
  EXPECT_THAT(error_of([&] { connect_store(rank_of(2, 3, without.port(), kSecret), 1h); }),
              AllOf(HasSubstr("rank 0 has none"), HasSubstr("SHERD_JOB_SECRET")));
  EXPECT_EQ(lines.wait(1).size(), 1u);
}

TEST(JobSecret, ARankThatKnowsItIsToldWhatElseIsWrong) {
  Guarded job;
  EXPECT_THAT(error_of([&] { connect_store(rank_of(1, 3, job.server.port(), kSecret), 1h); }),
              AllOf(HasSubstr("there is a rank 1 already"), Not(HasSubstr("SHERD_JOB_SECRET"))));
  EXPECT_THAT(error_of([&] { connect_store(rank_of(2, 4, job.server.port(), kSecret), 1h); }),
              HasSubstr("this job has 3 processes, not 4"));
  job.expect_unharmed(2);
}

// A stranger may have taken the port before rank 0 could.
TEST(JobSecret, ARankDoesNotTrustAStoreThatDoesNotKnowIt) {
  for (const std::string& proof : {std::string(), std::string(store_wire::kProofBytes, 'p')}) {
    const Socket listener = Socket::listen(kLoopback, 0);
    std::jthread stranger([&] {
      for (const auto last = Clock::now() + 10s; Clock::now() < last; std::this_thread::sleep_for(1ms)) {
        std::string host, port;
        int error = 0;
        Socket s = listener.accept(host, port, error);
        if (!s) continue;
        StorePeer peer(std::move(s));
        peer.welcome(proof);
        EXPECT_TRUE(peer.is_closed());
        return;
      }
    });
    EXPECT_THAT(error_of([&] { connect_store(rank_of(1, 2, listener.local_port(), kSecret), 1h); }),
                AllOf(HasSubstr("does not know the secret"), HasSubstr("SHERD_JOB_SECRET")));
  }
}

TEST(JobSecret, TheServersProofIsNotTheClients) {
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

TEST(Strangers, ThatClaimARankThatIsTakenGetNowhere) {
  Guarded job;
  StorePeer peer(job.server.port());
  const auto welcome = peer.greet({1, 3, {}, {}});
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->verdict, Verdict::secret);
  EXPECT_EQ(welcome->proof, "");
  EXPECT_THAT(welcome->reason, Not(HasSubstr("already"))) << "strangers learn nothing about the job";
  // What comes after is not read: the job is not ended by it.
  peer.send(store_wire::encode(StoreRequest{StoreRequest::Op::set, 0, "sherd/abort", "1:ended"}));
  EXPECT_TRUE(peer.is_closed());
  peer = StorePeer(Socket());
  job.expect_unharmed(1);
}

TEST(Strangers, ThatPlayAnOldHandshakeAgainGetNowhere) {
  Guarded job;
  std::string said;
  {
    StorePeer rank(job.server.port());
    const auto welcome = rank.greet({2, 3, {}, {}}, kSecret);
    ASSERT_TRUE(welcome);
    EXPECT_EQ(welcome->verdict, Verdict::accepted);
    said = rank.said();
    EXPECT_THAT(said, Not(HasSubstr(kSecret))) << "it never travels";
    rank.send(store_wire::encode(StoreRequest{StoreRequest::Op::bye, 0, {}, {}}));
    EXPECT_TRUE(rank.frame());
  }
  {
    StorePeer again(job.server.port());
    again.send(said + store_wire::encode(StoreRequest{StoreRequest::Op::set, 0, "sherd/abort", "2:ended"}));
    EXPECT_TRUE(again.frame());  // the opening, with another number than then
    const auto body = again.frame();
    const auto welcome = body ? store_wire::decode_welcome(*body) : std::nullopt;
    ASSERT_TRUE(welcome);
    EXPECT_EQ(welcome->verdict, Verdict::secret);
  }
  job.expect_unharmed(1);
}

TEST(Strangers, ThatSayNothingOrSpeakSlowlyAreDroppedInTime) {
  Guarded job(300ms);
  const auto start = Clock::now();
  std::vector<std::jthread> strangers;
  strangers.emplace_back([&] { EXPECT_TRUE(StorePeer(job.server.port()).is_closed()) << "says nothing"; });
  strangers.emplace_back([&] {
    StorePeer slow(job.server.port());
    const std::string opening = store_wire::encode(store_wire::Opening{std::string(32, 'n')});
    for (const char c : opening) {
      if (!slow.send(std::string(1, c))) break;
      std::this_thread::sleep_for(40ms);
    }
    EXPECT_TRUE(slow.is_closed());
  });
  strangers.emplace_back([&] {
    StorePeer half(job.server.port());
    half.send(store_wire::encode(store_wire::Opening{std::string(32, 'n')}));
    EXPECT_TRUE(half.is_closed()) << "never says who it is";
  });
  strangers.clear();
  EXPECT_LT(Clock::now() - start, 8s);
  for (const std::string& line : job.expect_unharmed(3))
    EXPECT_THAT(line, HasSubstr("did not say who it is within 300 ms"));
}

TEST(Strangers, ThatSendGarbageForEverAreDroppedAtOnce) {
  Guarded job;
  {
    std::mt19937 random(1);
    StorePeer peer(job.server.port());
    const auto last = Clock::now() + 10s;
    bool heard = true;
    while (heard && Clock::now() < last) {
      std::string noise(4096, ' ');
      for (char& c : noise) c = static_cast<char>(random());
      heard = peer.send(noise);
    }
    EXPECT_FALSE(heard);
  }
  { EXPECT_TRUE(StorePeer(job.server.port()).send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")); }
  { StorePeer hangs_up(job.server.port()); }
  const auto told = job.expect_unharmed(3);
  EXPECT_THAT(told, testing::Contains(HasSubstr("sent what no rank sends")).Times(2));
  EXPECT_THAT(told, testing::Contains(HasSubstr("hung up before it said who it is")));
}

/// How many connections these lines speak of.
size_t dropped(const std::vector<std::string>& lines) {
  size_t count = 0;
  for (const std::string& line : lines) {
    const auto at = line.find("dropped ") + 8;
    count += line.compare(at, 2, "a ") == 0 ? 1 : std::stoul(line.substr(at));
  }
  return count;
}

TEST(Strangers, AThousandAtOnceKeepNobodyOut) {
  constexpr size_t kMany = 1000;
  const Handles handles(kMany + 500);
  if (!handles.good()) GTEST_SKIP() << "this process may not have so many handles";
  auto job = std::make_unique<Guarded>(500ms);
  {
    std::vector<StorePeer> strangers;
    strangers.reserve(kMany);
    for (size_t i = 0; i < kMany / 2; ++i) strangers.emplace_back(job->server.port());
    job->one->set("in", "the middle");
    const auto two = connect_store(rank_of(2, 3, job->server.port(), kSecret), 10s);
    EXPECT_EQ(two->get("in"), "the middle");
    for (size_t i = kMany / 2; i < kMany; ++i) strangers.emplace_back(job->server.port());
    two->set("still", "here");
    for (StorePeer& stranger : strangers) EXPECT_TRUE(stranger.is_closed());
    two->set("and", "here");
  }
  job->one->set("k", "v");
  job->expect_closed();
  EXPECT_FALSE(announced(job->server));
  const auto lines = job->lines;
  job.reset();
  // On a slow machine more than ten seconds may have passed, and rank 2 may have had to try again.
  EXPECT_LE(lines->all().size(), 100u) << "a few lines, not one for each";
  EXPECT_GE(dropped(lines->all()), kMany);
  EXPECT_LE(dropped(lines->all()), kMany + 50);
}

TEST(Strangers, ThatTakeTheProcesssLastHandlesAreSentAway) {
  Guarded job(500ms);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::vector<StorePeer> strangers;
    for (int i = 0; i < 60; ++i) strangers.emplace_back(job.server.port());
    for (StorePeer& stranger : strangers) stranger.is_closed();
    _exit(0);
  }
  {
    const Handles few(static_cast<rlim_t>(job.handles) + 12);
    const auto two = connect_store(rank_of(2, 3, job.server.port(), kSecret), 20s);
    two->set("from", "2");
    EXPECT_EQ(job.one->get("from"), "2");
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  job.expect_closed();
  EXPECT_FALSE(announced(job.server));
}

TEST(Strangers, AreCountedWhereTheyAreMany) {
  Lines lines;
  const auto start = Clock::now();
  {
    DropLog log(lines.log());
    for (int i = 0; i < 1000; ++i) log.dropped("192.0.2.1", std::to_string(i), "it said nothing", start);
    log.dropped("192.0.2.2", "7", "it said nothing", start);
    EXPECT_EQ(lines.all().size(), 16u);
    EXPECT_EQ(lines.all().front(), "store: dropped a connection from 192.0.2.1 port 0: it said nothing");
    log.look(start + 9s);
    EXPECT_EQ(lines.all().size(), 16u);
    log.look(start + 10s);
    EXPECT_EQ(lines.all().size(), 18u);
    EXPECT_EQ(lines.all()[16], "store: dropped 984 more connections from 192.0.2.1");
    EXPECT_EQ(lines.all()[17], "store: dropped 1 more connection from 192.0.2.2");
    for (int i = 0; i < 100; ++i) log.dropped("192.0.2." + std::to_string(i), "1", "late", start + 20s);
  }
  EXPECT_EQ(lines.all().size(), 18u + 16 + DropLog::kHosts + 1) << "what was held back is told at the end";
  EXPECT_EQ(lines.all().back(), "store: dropped 76 more connections from other addresses");
  DropLog failing([](const std::string&) { throw std::runtime_error("no more room"); });
  failing.dropped("192.0.2.1", "1", "it said nothing", start);
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

TEST(WithoutASecret, SeveralHostsAreWarnedOfOnceOrRefused) {
  Lines lines;
  const int port = Socket::listen(kLoopback, 0).local_port();
  LaunchEnvironment e{0, 2, 0, "node0", port};
  connect_store(e, 1s, {.log = lines.log()});
  EXPECT_THAT(lines.all(), ElementsAre(AllOf(HasSubstr("no secret"), HasSubstr("SHERD_JOB_SECRET"),
                                             HasSubstr("port " + std::to_string(port)))));
  e.without_secret = WithoutSecret::loopback;
  for (const int rank : {0, 1}) {
    e.rank = rank;
    EXPECT_THAT(error_of([&] { connect_store(e, 1s, {.log = lines.log()}); }),
                AllOf(HasSubstr("node0"), HasSubstr("SHERD_JOB_SECRET"), HasSubstr("loopback")));
  }
  // Where there is a secret, or one host, there is nothing to warn of.
  e.rank = 0;
  e.secret = kSecret;
  connect_store(e, 1s, {.log = lines.log()});
  connect_store(rank_of(0, 2, port, {}), 1s, {.log = lines.log()});
  e = {0, 2, 0, "127.0.0.1", port};
  e.without_secret = WithoutSecret::loopback;
  const auto store = connect_store(e, 1s, {.log = lines.log()});
  EXPECT_EQ(lines.all().size(), 1u);
  std::string why;
  EXPECT_FALSE(Socket::connect("127.0.0.2", port, Clock::now() + 5s, why))
      << "on loopback's own address alone";
}

}  // namespace
}  // namespace sherd::test
