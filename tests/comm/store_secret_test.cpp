// The job's secret: who gets into the store, who does not, and what those who do not can do to it, which is
// nothing.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include <sherd/base/error.h>
#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/comm/bootstrap/detail/drop_log.h>
#include <sherd/comm/bootstrap/detail/store_session.h>
#include <sherd/comm/bootstrap/detail/tcp_store.h>

#include "comm/store_lines.h"
#include "comm/store_peer.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;
using testing::_;
using Clock = std::chrono::steady_clock;
using Verdict = store_wire::Welcome::Verdict;

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
  explicit Guarded(std::chrono::milliseconds patience = 60s)
      : server(kLoopback, 0, 3, 1s, {}, {kSecret, lines->log(), 64, patience}),
        one(connect_store(rank_of(1, 3, server.port(), kSecret), 60s)),
        handles(open_handles()),
        told_before(lines->all().size()) {}
  /// The job continues, nothing leaked and nothing was reported but `count` lines, which are returned.
  std::vector<std::string> expect_unharmed(size_t count) {
    one->set("k", "v");
    EXPECT_EQ(server.get("k"), "v");
    EXPECT_FALSE(announced(server));
    auto told = lines->wait(told_before + count);
    told.erase(told.begin(), told.begin() + static_cast<std::ptrdiff_t>(told_before));
    EXPECT_EQ(told.size(), count) << testing::PrintToString(told);
    expect_closed();
    return told;
  }
  void expect_closed() const {
    for (const auto last = Clock::now() + 60s; open_handles() > handles && Clock::now() < last;)
      std::this_thread::sleep_for(5ms);
    EXPECT_EQ(open_handles(), handles) << "connections are still held";
  }

  const std::shared_ptr<Lines> lines = std::make_shared<Lines>();
  ServerStore server;
  std::shared_ptr<Store> one;
  int handles;
  size_t told_before;  // of rank 1, where it took longer than `patience` and came again
};

TEST(JobSecret, RanksThatKnowItTalk) {
  Guarded job;
  const auto two = connect_store(rank_of(2, 3, job.server.port(), kSecret), 60s);
  two->set("from", "2");
  EXPECT_EQ(job.one->get("from"), "2");
  EXPECT_THAT(job.lines->all(), ElementsAre());
}

TEST(JobSecret, DifferentSecretsOfRanksAreReported) {
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

TEST(JobSecret, ARankWithTheSecretReceivesOtherErrors) {
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
      for (const auto last = Clock::now() + 60s; Clock::now() < last; std::this_thread::sleep_for(1ms)) {
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

TEST(Strangers, ThatClaimARankThatIsTakenGetNowhere) {
  Guarded job;
  StorePeer peer(job.server.port());
  const auto welcome = peer.greet({1, 3, {}, {}});
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->verdict, Verdict::secret);
  EXPECT_EQ(welcome->proof, "");
  EXPECT_THAT(welcome->reason, Not(HasSubstr("already"))) << "strangers learn nothing about the job";
  // Later messages are not read: they do not end the job.
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
  EXPECT_LT(Clock::now() - start, 60s);
  for (const std::string& line : job.expect_unharmed(3))
    EXPECT_THAT(line, HasSubstr("did not say who it is within 300 ms"));
}

TEST(Strangers, ThatSendGarbageForEverAreDroppedAtOnce) {
  Guarded job;
  {
    std::mt19937 random(1);
    StorePeer peer(job.server.port());
    const auto last = Clock::now() + 60s;
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

/// Returns the number of connections in these lines.
size_t dropped(const std::vector<std::string>& lines) {
  size_t count = 0;
  for (const std::string& line : lines) {
    const auto at = line.find("dropped ") + 8;
    count += line.compare(at, 2, "a ") == 0 ? 1 : std::stoul(line.substr(at));
  }
  return count;
}

TEST(Strangers, AThousandAtOnceDoNotBlockRanks) {
  constexpr size_t kMany = 1000;
  const Handles handles(kMany + 500);
  if (!handles.good()) GTEST_SKIP() << "this process may not have so many handles";
  auto job = std::make_unique<Guarded>(500ms);
  {
    std::vector<StorePeer> strangers;
    strangers.reserve(kMany);
    for (size_t i = 0; i < kMany / 2; ++i) strangers.emplace_back(job->server.port());
    job->one->set("in", "the middle");
    const auto two = connect_store(rank_of(2, 3, job->server.port(), kSecret), 60s);
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

/// A connection to the store from one of this host's many addresses.
StorePeer peer_from(const std::string& address, int port) {
  Socket s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{}, there{};
  own.sin_family = there.sin_family = AF_INET;
  EXPECT_EQ(inet_pton(AF_INET, address.c_str(), &own.sin_addr), 1);
  EXPECT_EQ(inet_pton(AF_INET, kLoopback.c_str(), &there.sin_addr), 1);
  there.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(::bind(s.fd(), reinterpret_cast<const sockaddr*>(&own), sizeof own), 0);
  EXPECT_EQ(::connect(s.fd(), reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
  ::fcntl(s.fd(), F_SETFL, O_NONBLOCK);
  return StorePeer(std::move(s));
}

TEST(Strangers, OfManyAddressesMakeRoomByAge) {
  Lines lines;
  ServerStore server(kLoopback, 0, 2, 1s, {}, {kSecret, lines.log(), 4, 60s});
  std::vector<StorePeer> strangers;
  // Two connections more than there is room for, which is two ranks' and four; the later, the lower as text.
  for (int host = 9; host > 1; --host)
    strangers.push_back(peer_from("127.0.0." + std::to_string(host), server.port()));
  EXPECT_THAT(lines.wait(2), ElementsAre(HasSubstr("from 127.0.0.9 port"), HasSubstr("from 127.0.0.8 port")));
  // A rank comes, the lowest of all; then one address has two, of which the older one goes.
  const auto one = connect_store(rank_of(1, 2, server.port(), kSecret), 60s);
  strangers.push_back(peer_from("127.0.0.2", server.port()));
  strangers.push_back(peer_from("127.0.0.9", server.port()));
  EXPECT_THAT(lines.wait(5), ElementsAre(_, _, HasSubstr("from 127.0.0.7 port"),
                                         HasSubstr("from 127.0.0.6 port"), HasSubstr("from 127.0.0.2 port")));
  one->set("k", "v");
  EXPECT_EQ(server.get("k"), "v");
}

TEST(Strangers, ThatTakeTheProcesssLastHandlesAreSentAway) {
  constexpr int kStrangers = 60;  // fewer than would be sent away for being many
  Guarded job;
  pid_t child = -1;
  {
    const Handles few(static_cast<rlim_t>(job.handles) + 12);
    ASSERT_TRUE(few.good());
    child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const Handles own(static_cast<rlim_t>(job.handles) + kStrangers + 50);
      std::vector<Socket> strangers;
      std::string why;
      for (int i = 0; i < kStrangers; ++i)
        strangers.push_back(Socket::connect(kLoopback, job.server.port(), Clock::now() + 60s, why));
      const bool all = std::ranges::all_of(strangers, [](const Socket& s) { return static_cast<bool>(s); });
      try {  // while they hold every handle that this job may have
        connect_store(rank_of(2, 3, job.server.port(), kSecret), 60s)->set("from", "2");
      } catch (const Error&) {
        _exit(2);
      }
      _exit(own.good() && all ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "256: it could not make its connections; 512: rank 2 was not let in";
    EXPECT_EQ(job.one->get("from"), "2");
  }
  job.expect_closed();
  EXPECT_FALSE(announced(job.server));
  EXPECT_THAT(job.lines->all(), testing::Contains(HasSubstr("too many connections at once")))
      << "the job never ran out of handles";
}

}  // namespace
}  // namespace sherd::test
