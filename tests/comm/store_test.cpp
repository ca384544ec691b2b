// The job's store: its verbs, and every way in which processes fail to find each other or lose each other.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include <sherd/base/error.h>
#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/comm/bootstrap/detail/socket.h>
#include <sherd/comm/bootstrap/detail/store_wire.h>
#include <sherd/comm/bootstrap/detail/tcp_store.h>

#include "comm/on_time.h"
#include "comm/reserved_port.h"
#include "comm/store_lines.h"
#include "comm/store_peer.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::shared_ptr<Store> client(int port, int rank, int size, std::chrono::milliseconds timeout = kLongEnough) {
  return connect_store({rank, size, rank, kLoopback, port}, timeout);
}

template <class F>
std::string comm_error(F f) {
  try {
    f();
    return "no error";
  } catch (const CommError& e) {
    return e.what();
  }
}

void expect_verbs(Store& a, Store& b) {
  EXPECT_FALSE(a.get("k"));
  a.set("k", std::string("v\0w", 3));
  EXPECT_EQ(b.get("k"), std::string("v\0w", 3));
  b.set("k", "");
  EXPECT_EQ(a.get("k"), "");
  EXPECT_EQ(a.set_once("k", "late"), "");
  EXPECT_EQ(a.set_once("once", "first"), "first");
  EXPECT_EQ(b.set_once("once", "second"), "first");
  a.erase("k");
  a.erase("k");
  EXPECT_FALSE(b.get("k"));
  EXPECT_EQ(a.add("n", 5), 5);
  EXPECT_EQ(b.add("n", -7), -2);
  EXPECT_THROW(a.add("once", 1), InvalidArgument);
  EXPECT_FALSE(a.all("p", 2));
  a.set("p/1", "one");
  EXPECT_FALSE(b.all("p", 2));
  EXPECT_THAT(b.absent("p", 3), ElementsAre(0, 2));
  b.set("p/0", "zero");
  EXPECT_EQ(a.all("p", 2), (std::vector<std::string>{"zero", "one"}));
  EXPECT_EQ(a.all("nothing", 0), std::vector<std::string>{});
  EXPECT_EQ(b.wait("p/1", 1ms), "one");
  EXPECT_THAT(comm_error([&] { a.wait("q", 20ms); }), HasSubstr("waited 20 ms for key q"));

  const std::string longest(Store::kMaxValue, 'x');
  a.set(std::string(Store::kMaxKey, 'k'), longest);
  EXPECT_EQ(b.get(std::string(Store::kMaxKey, 'k')), longest);
  EXPECT_THROW(a.set("k", longest + "x"), InvalidArgument);
  EXPECT_THROW(a.set(std::string(Store::kMaxKey + 1, 'k'), ""), InvalidArgument);
  EXPECT_FALSE(announced(a));
  announce(a, {3, "a cause: with a colon"});
  announce(b, {2, "too late"});
  ASSERT_TRUE(announced(b));
  EXPECT_EQ(announced(b)->rank, 3);
  EXPECT_EQ(announced(b)->cause, "a cause: with a colon");
}

TEST(Store, VerbsInMemory) {
  const auto store = make_memory_store();
  expect_verbs(*store, *store);
}

TEST(Store, VerbsOverTcp) {
  ServerStore server(kLoopback, 0, 3, 1s);
  const auto one = client(server.port(), 1, 3), two = client(server.port(), 2, 3);
  expect_verbs(*one, *two);
}

TEST(Store, HasALimit) {
  const auto store = make_memory_store();
  const std::string value(Store::kMaxValue, 'x');
  const auto fill = [&] {
    for (int i = 0; i < 300; ++i) store->set(std::to_string(i), value);
  };
  EXPECT_THROW(fill(), InvalidArgument);
}

TEST(Store, ManyThreadsAndClientsCount) {
  constexpr int kRanks = 5;
  ServerStore server(kLoopback, 0, kRanks, 1s);
  {
    std::vector<std::jthread> threads;
    for (int r = 1; r < kRanks; ++r)
      threads.emplace_back([&, r] {
        const auto store = client(server.port(), r, kRanks);
        std::vector<std::jthread> inner;
        for (int t = 0; t < 2; ++t)
          inner.emplace_back([&] {
            for (int i = 0; i < 200; ++i) store->add("n", 1);
          });
      });
  }
  EXPECT_EQ(server.add("n", 0), (kRanks - 1) * 2 * 200);
}

TEST(Store, BarrierHoldsEverybodyAndNamesWhoIsMissing) {
  ServerStore server(kLoopback, 0, 3, 1s);
  std::atomic<int> before{0};
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < 3; ++r)
      threads.emplace_back([&, r] {
        std::shared_ptr<Store> own;
        if (r > 0) own = client(server.port(), r, 3);
        Store& store = own ? *own : server;
        std::this_thread::sleep_for(r * 10ms);
        ++before;
        store.barrier("all", r, 3, kLongEnough);
        EXPECT_EQ(before.load(), 3);
        if (r == 1) {
          EXPECT_THAT(comm_error([&] { store.barrier("two", r, 3, 50ms); }),
                      HasSubstr("store barrier two on rank 1: waited 50 ms for ranks 0, 2,"));
        }
      });
  }
}

// Containers often have none. Socket::listen does not tell: it takes every address where the named one is not here.
bool has_ipv6_loopback() {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const Socket s(::socket(AF_INET6, SOCK_STREAM, 0));
  return s && ::bind(s.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

TEST(Bootstrap, RanksMayComeBeforeRankZeroAndByIPv6) {
  for (const char* host : {"127.0.0.1", "localhost", "::1"}) {
    SCOPED_TRACE(host);
    if (std::string(host) == "::1" && !has_ipv6_loopback()) continue;
    const ReservedPort reserved;
    const int port = reserved.number();
    std::jthread other([&] {
      const auto store = connect_store({1, 2, 1, host, port}, kLongEnough);
      store->set("hello", "from 1");
    });
    std::this_thread::sleep_for(50ms);
    const auto store = connect_store({0, 2, 0, host, port}, kLongEnough);
    EXPECT_EQ(store->wait("hello", kLongEnough), "from 1");
  }
}

TEST(Bootstrap, OneProcessNeedsNoPort) {
  connect_store({0, 1, 0, "", 0}, 1s)->set("k", "v");
  EXPECT_THROW(connect_store({1, 1, 0, "", 0}, 1s), InvalidArgument);
  EXPECT_THROW(connect_store({0, 1, 0, "", 0}, 0s), InvalidArgument);
}

TEST(Bootstrap, APortThatIsTakenIsAnErrorThatNamesIt) {
  const Socket taken = Socket::listen(kLoopback, 0);
  const int port = taken.local_port();
  EXPECT_THAT(comm_error([&] {
                connect_store({0, 2, 0, kLoopback, port}, 1s);
              }),
              AllOf(HasSubstr("cannot listen on port " + std::to_string(port)),
                    HasSubstr("Address already in use"), HasSubstr("SHERD_STORE_PORT")));
  EXPECT_THAT(comm_error([&] {
                connect_store({0, 2, 0, kLoopback, port, true}, 1s);
              }),
              HasSubstr("cannot listen on 127.0.0.1:" + std::to_string(port)));
}

TEST(Bootstrap, WithoutAListenerItWaitsUntilTheTimeout) {
  const ReservedPort reserved;
  const auto start = Clock::now();
  const auto [timeout, text] = with_timeout(
      [&](std::chrono::milliseconds given) {
        return comm_error([&] { client(reserved.number(), 1, 2, given); });
      },
      // Else it came to nothing in that time.
      [](const std::string& told) { return told.find("Connection refused") != told.npos; });
  EXPECT_THAT(text, AllOf(HasSubstr("rank 1 could not reach rank 0 at 127.0.0.1:"),
                          HasSubstr("within " + std::to_string(timeout.count()) + " ms"),
                          HasSubstr("Connection refused")));
  EXPECT_GT(Clock::now() - start, timeout * 4 / 5);
  EXPECT_LT(Clock::now() - start, kLongEnough);
}

TEST(Bootstrap, AnotherJobOrADoubledRankIsRefusedAtOnce) {
  ServerStore server(kLoopback, 0, 3, 1s);
  const auto one = client(server.port(), 1, 3);
  EXPECT_THAT(comm_error([&] { client(server.port(), 1, 3, 1h); }), HasSubstr("there is a rank 1 already"));
  EXPECT_THAT(comm_error([&] { client(server.port(), 1, 4, 1h); }),
              HasSubstr("this job has 3 processes, not 4"));
  one->set("still", "there");
  EXPECT_FALSE(announced(server));
}

TEST(Bootstrap, AnotherJobOfEqualSizeIsRefusedWhereBothHaveNames) {
  ServerStore server(kLoopback, 0, 3, 1s, "job 7");
  const auto connect = [&](int rank, const std::string& job) {
    return connect_store({rank, 3, rank, kLoopback, server.port(), true, job}, kLongEnough);
  };
  EXPECT_THAT(comm_error([&] { connect(1, "job 8"); }), HasSubstr("this is job \"job 7\", not \"job 8\""));
  const auto one = connect(1, "job 7"), two = connect(2, "");
  one->set("k", "v");
  EXPECT_EQ(two->get("k"), "v");
  ServerStore longest(kLoopback, 0, 2, 1s, std::string(1000, 'x'));
  connect_store({1, 2, 1, kLoopback, longest.port(), true, std::string(1000, 'x')}, kLongEnough)
      ->set("k", "v");
}

// Same as when rank 0's process is suspended: the request has a timeout of its own.
TEST(Loss, AStoreThatDoesNotAnswerIsLostToWhoIsInAHurry) {
  const Socket listener = Socket::listen(kLoopback, 0);
  std::jthread program([&] {
    std::string in, why;
    pollfd p{listener.fd(), POLLIN, 0};
    poll(&p, 1, 60'000);
    const Socket s(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK));
    StorePeer(Socket(::dup(s.fd()))).welcome();
    while (s.receive(in, Clock::now() + kLongEnough, why)) {
    }
  });
  const auto start = Clock::now();
  {
    const auto store = client(listener.local_port(), 1, 2, 1h);
    EXPECT_THAT(comm_error([&] { announced(*store, 100ms); }), HasSubstr("did not answer in time"));
    EXPECT_LT(Clock::now() - start, kLongEnough) << "long before the hour is over";
  }
}

TEST(Bootstrap, AnotherProgramOnThePortIsNotAStore) {
  const Socket listener = Socket::listen(kLoopback, 0);
  std::atomic<bool> stop{false};
  std::jthread program([&] {
    while (!stop) {
      const Socket s(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK));
      if (!s) {
        std::this_thread::sleep_for(1ms);
        continue;
      }
      std::string ignored;
      s.send("HTTP/1.1 400 Bad Request\r\n\r\n", Clock::now() + kLongEnough, ignored);
    }
  });
  EXPECT_THAT(comm_error([&] { client(listener.local_port(), 1, 2, kLongEnough); }),
              HasSubstr("not sherd's store"));
  stop = true;
}

TEST(Bootstrap, AProgramThatAcceptsAndKeepsSilentDoesNotHangAnybody) {
  const Socket listener = Socket::listen(kLoopback, 0);  // its backlog accepts
  const auto start = Clock::now();
  const auto text = with_timeout(
                        [&](std::chrono::milliseconds given) {
                          return comm_error([&] { client(listener.local_port(), 1, 2, given); });
                        },
                        [](const std::string& told) { return told.find("did not answer") != told.npos; })
                        .second;
  EXPECT_THAT(text, HasSubstr("it did not answer in time"));
  EXPECT_LT(Clock::now() - start, kLongEnough);
}

TEST(Hostile, WhatNoClientSendsIsCutOffAndOthersAreServed) {
  ServerStore server(kLoopback, 0, 2, 1s);
  const auto good = client(server.port(), 1, 2);
  const auto frame = [](uint32_t length, const std::string& body) {
    std::string s;
    for (int i = 0; i < 4; ++i) s.push_back(static_cast<char>(length >> (8 * i)));
    return s + body;
  };
  std::mt19937 random(1);
  std::string noise(100'000, ' ');
  for (char& c : noise) c = static_cast<char>(random());
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), frame(0xffffffff, "x"), frame(0x7fffffff, "sherd store 3\n"),
        frame(0, ""), frame(4, "junk"), noise}) {
    std::string why, answer;
    const Socket s = Socket::connect(kLoopback, server.port(), Clock::now() + kLongEnough, why);
    ASSERT_TRUE(s) << why;
    s.send(bytes, Clock::now() + kLongEnough, why);
    EXPECT_FALSE(s.receive(answer, Clock::now() + kLongEnough, why))
        << "the connection is closed without a word";
    EXPECT_NE(why, "it did not answer in time");
    good->set("k", "v");
  }
  // Half a hello, then silence; and one that hangs up in the middle of it.
  std::string why;
  const Socket slow = Socket::connect(kLoopback, server.port(), Clock::now() + kLongEnough, why);
  slow.send(frame(46, "sherd st"), Clock::now() + kLongEnough, why);
  { const Socket gone = Socket::connect(kLoopback, server.port(), Clock::now() + kLongEnough, why); }
  EXPECT_EQ(good->get("k"), "v");
  EXPECT_FALSE(announced(*good)) << "strangers are no ranks";
}

TEST(Hostile, ARankThatSendsDamagedRequestsIsCutOffAndAnnounced) {
  ServerStore server(kLoopback, 0, 3, 1s);
  StorePeer peer(server.port());
  ASSERT_TRUE(peer.greet({2, 3, {}, {}}));
  peer.send(std::string("\x01\x00\x00\x00\xff", 5));
  EXPECT_TRUE(peer.is_closed());
  const auto deadline = Clock::now() + kLongEnough;
  while (!announced(server) && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(announced(server));
  EXPECT_EQ(announced(server)->rank, 2);
  EXPECT_THAT(announced(server)->cause, HasSubstr("it sent what no rank sends"));
}

TEST(Loss, AClosedStoreIsNotAFailureAndABrokenOneIs) {
  ServerStore server(kLoopback, 0, 3, 1s);
  client(server.port(), 1, 3).reset();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto store = client(server.port(), 2, 3);
    store->set("up", "");
    pause();
    _exit(0);
  }
  server.wait("up", kLongEnough);
  EXPECT_FALSE(announced(server));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const auto deadline = Clock::now() + kLongEnough;
  while (!announced(server) && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(announced(server));
  EXPECT_EQ(announced(server)->rank, 2);
  EXPECT_THAT(announced(server)->cause, HasSubstr("rank 2's process ended"));
}

TEST(Loss, OfRankZeroIsAnErrorOfEveryLaterRequest) {
  int port_pipe[2];
  ASSERT_EQ(pipe(port_pipe), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ServerStore server(kLoopback, 0, 2, 1s);
    const int port = server.port();
    if (write(port_pipe[1], &port, sizeof port) != sizeof port) _exit(1);
    pause();
    _exit(0);
  }
  int port = 0;
  ASSERT_EQ(read(port_pipe[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  const auto store = client(port, 1, 2);
  store->set("k", "v");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT(comm_error([&] { store->get("k"); }), HasSubstr("rank 1 lost rank 0 at 127.0.0.1:"));
  close(port_pipe[0]);
  close(port_pipe[1]);
}

TEST(Loss, RankZeroWaitsForTheOthersToFinishButNotForEver) {
  auto server = std::make_unique<ServerStore>(kLoopback, 0, 2, 1h);
  auto store = client(server->port(), 1, 2);
  {
    const auto start = Clock::now();
    std::jthread slow([&] {
      std::this_thread::sleep_for(100ms);
      EXPECT_NO_THROW(store->set("late", "but fine"));
      store.reset();
    });
    server.reset();
    EXPECT_GT(Clock::now() - start, 90ms);
    EXPECT_LT(Clock::now() - start, kLongEnough) << "long before the hour is over";
  }
  server = std::make_unique<ServerStore>(kLoopback, 0, 2, 100ms);
  store = client(server->port(), 1, 2);
  const auto start = Clock::now();
  server.reset();
  EXPECT_LT(Clock::now() - start, kLongEnough);
}

}  // namespace
}  // namespace sherd::test
