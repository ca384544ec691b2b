// Properties of the MPI backend alone: long messages in pieces, waiting that costs no core, options.
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include <sherd/comm/bootstrap/detail/mpi_bootstrap.h>
#include <sherd/comm/mpi/detail/mpi_world.h>
#include <sherd/comm/watch/heartbeat.h>

#include "comm/integer_tensors.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Lengths that divide into neither messages nor pieces, beyond what MPI sends at once and with messages that
// are longer and shorter than the whole.
TEST(LongMessages, ArriveWholeInPiecesOfAnyLength) {
  for (const int64_t most : {int64_t{100'003}, int64_t{1} << 29}) {
    LaunchOptions options;
    options.mpi.max_message = most;
    options.mpi.reduction_piece = most / 3;
    run_ranks(3, options, [](RankContext& c) {
      Stream& s = c.device->compute();
      const int rank = c.world->rank();
      const int64_t n = 300'007;
      const Tensor all = Tensor::empty(*c.device, {3 * n}, DType::i32, "test");
      for (int64_t i = 0; i < n; ++i) all.data<int32_t>()[rank * n + i] = static_cast<int32_t>(7 * i + rank);
      c.world->all_gather(s, all, all.flat(rank * n, (rank + 1) * n));
      s.synchronize();
      int64_t wrong = 0;
      for (int64_t i = 0; i < 3 * n; ++i)
        wrong += all.data<int32_t>()[i] != static_cast<int32_t>(7 * (i % n) + i / n);
      EXPECT_EQ(wrong, 0);
      c.world->all_reduce(s, all);
      c.world->broadcast(s, all, 1);
      s.synchronize();
      for (int64_t i = 0; i < 3 * n; ++i)
        wrong += all.data<int32_t>()[i] != static_cast<int32_t>(3 * (7 * (i % n) + i / n));
      EXPECT_EQ(wrong, 0);
      const Tensor to = Tensor::empty(*c.device, {n}, DType::i32, "test");
      if (rank == 0) c.world->send(s, all.flat(n, 2 * n), 2);
      if (rank == 2) {
        c.world->recv(s, to, 0);
        s.synchronize();
        for (int64_t i = 0; i < n; ++i)
          wrong += to.data<int32_t>()[i] != static_cast<int32_t>(3 * (7 * i + 1));
        EXPECT_EQ(wrong, 0);
      }
    });
  }
}

// Queued operations still read memory that the host has released: a reduction, which takes memory while it
// runs, must not take that.
TEST(Memory, OfQueuedWorkIsLeftAlone) {
  LaunchOptions options;
  options.mpi.reduction_piece = 1 << 20;
  run_ranks(2, options, [](RankContext& c) {
    Stream& s = c.device->compute();
    const int64_t n = 4096;
    int64_t wrong = 0;
    for (int round = 0; round < 5; ++round) {
      const Tensor sum = make_tensor(*c.device, DType::i32, poison(2 * n));
      Tensor given_back = make_tensor(*c.device, DType::i32, poison(n));
      const auto clone = c.world->clone();  // which has no memory yet
      clone->all_reduce(s, sum);
      s.submit("look", [&wrong, view = given_back.unowned_view()](ExecutionContext&) {
        for (int64_t i = 0; i < view.numel(); ++i) wrong += view.data<int32_t>()[i] != 77;
      });
      given_back = {};
      s.synchronize();
    }
    EXPECT_EQ(wrong, 0);
  });
}

// A call that moves data progresses without polls by the host, and while the compute stream works.
TEST(Progress, NeedsNoCallOfTheHost) {
  run_ranks(2, [](RankContext& c) {
    const auto side = c.device->make_stream("side");
    const int64_t n = 500'000;
    const Tensor all = Tensor::empty(*c.device, {2 * n}, DType::f32, "test");
    std::fill_n(all.data<float>(), 2 * n, 1.0f);
    std::atomic<bool> moved{false};
    c.world->all_gather(*side, all, all.flat(c.world->rank() * n, (c.world->rank() + 1) * n));
    side->submit("moved", [&](ExecutionContext&) { moved = true; });
    const auto deadline = std::chrono::steady_clock::now() + 100s;
    while (!moved && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(moved);
    side->synchronize();
  });
}

// One thread of each process polls MPI and the others sleep, so a second of waiting costs little.
TEST(Waiting, CostsNoCore) {
  run_ranks(2, [](RankContext& c) {
    Stream& s = c.device->compute();
    c.world->barrier(s);
    s.synchronize();
    const double before = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    if (c.world->rank() == 0) std::this_thread::sleep_for(1s);
    c.world->barrier(s);
    s.synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(cpu_seconds() - before, 0.3 * took.count());
  });
}

TEST(Recovery, IsRefusedOnEveryRank) {
  run_ranks(2, [](RankContext& c) { EXPECT_THROW(c.world->recover(), NotSupported); });
}

// The successor sends no more heartbeats; time in which the checking process was suspended does not count.
TEST(Heartbeat, EndsWithTheLastOne) {
  using std::chrono::seconds;
  const std::shared_ptr<Store> store = make_memory_store();
  comm::Heartbeat one(store, "alive", 0, 2, 10s), other(store, "alive", 1, 2, 10s);
  const comm::Heartbeat::Clock::time_point begin{};
  int now = 0;
  for (; now < 30; ++now) {
    EXPECT_EQ(one.check(begin + seconds(now)), std::nullopt) << now;
    EXPECT_EQ(other.check(begin + seconds(now)), std::nullopt) << now;
  }
  for (; now < 39; ++now) EXPECT_EQ(one.check(begin + seconds(now)), std::nullopt) << now;
  now += 3600;  // stopped as a whole
  EXPECT_EQ(one.check(begin + seconds(now)), std::nullopt);
  EXPECT_GT(one.check(begin + seconds(now + 1)).value_or(0ms), 10s);
  other.check(begin + seconds(now + 1));
  EXPECT_EQ(one.check(begin + seconds(now + 2)), std::nullopt) << "goes on";

  comm::Heartbeat alone(store, "alone", 0, 1, 10s);
  for (int i = 0; i < 60; ++i) EXPECT_EQ(alone.check(begin + seconds(i)), std::nullopt);
}

// A save's collectives wait for hours: a process suspended meanwhile is detected by its missing heartbeat.
TEST(Heartbeat, NamesASuspendedProcess) {
  if (processes() != 2) GTEST_SKIP() << "for two processes: it takes twelve seconds";
  LaunchOptions options;
  options.timeout = 2s;
  const std::shared_ptr<Store> store = common_store();
  try {
    run_ranks(2, options, [&](RankContext& c) {
      const auto side = c.world->side_channel(3h);
      if (c.world->rank() == 1) {
        store->set("pid", std::to_string(getpid()));
        raise(SIGSTOP);
      }
      Stream& s = c.device->compute();
      side->barrier(s);
      try {
        s.synchronize();
      } catch (...) {
        if (c.world->rank() == 0) kill(std::stoi(store->wait("pid", 30s)), SIGCONT);
        throw;
      }
    });
    // The suspended process may find that the other had come before it receives the abort.
    EXPECT_TRUE(is_here(1, 2)) << "ended well";
  } catch (const CommError& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("no heartbeat from rank 1 (process 1) for")));
  }
}

// MPI's own collectives, where each rank has a process: sums of small integers are the same in any order.
TEST(LibraryOrder, SumsWhateverTheOrder) {
  LaunchOptions options;
  options.mpi.library_order = true;
  for (int ranks = 1; ranks <= processes(); ++ranks) {
    run_ranks(ranks, options, [&](RankContext& c) {
      Stream& s = c.device->compute();
      const auto halves = c.world->split(c.world->rank() % 2, -c.world->rank());
      for (const auto& group : {c.world, halves, c.world->clone()}) {
        const int n = group->size(), me = group->rank();
        int sum = 0;
        for (int r = 0; r < n; ++r) sum += r + 1;
        for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i32}) {
          const std::string where = fmt::format("{} {} of {}", name_of(dtype), me, n);
          Ints mine, want;
          for (int i = 0; i < 5 * n; ++i) {
            mine.push_back((me + 1) * (i % 7));
            want.push_back(sum * (i % 7));
          }
          const Ints slice(want.begin() + 5 * me, want.begin() + 5 * (me + 1));
          const Tensor whole = make_tensor(*c.device, dtype, mine);
          group->all_reduce(s, whole);
          EXPECT_EQ(read_tensor(s, whole), want) << where;
          const Tensor send = make_tensor(*c.device, dtype, mine),
                       recv = make_tensor(*c.device, dtype, Ints(5, 77));
          group->reduce_scatter(s, recv, send);
          EXPECT_EQ(read_tensor(s, recv), slice) << where;
          EXPECT_EQ(read_tensor(s, send), mine) << where;
          group->reduce_scatter(s, send.flat(5 * me, 5 * (me + 1)), send);
          std::copy(slice.begin(), slice.end(), mine.begin() + 5 * me);
          EXPECT_EQ(read_tensor(s, send), mine) << where << " in place";
          const Tensor most = make_tensor(*c.device, dtype, {me, 3});
          group->all_reduce(s, most, ReduceOp::max);
          EXPECT_EQ(read_tensor(s, most), Ints({n - 1, 3})) << where;
          const Tensor nothing = make_tensor(*c.device, dtype, {});
          group->all_reduce(s, nothing);
        }
      }
    });
  }
}

TEST(LibraryOrder, AFailureEndsAllRanksWithItsCause) {
  if (processes() == 1) GTEST_SKIP() << "one process";
  LaunchOptions options;
  options.mpi.library_order = true;
  options.timeout = 20s;
  EXPECT_THAT(message_of<Error>([&] {
                run_ranks(processes(), options, [](RankContext& c) {
                  Stream& s = c.device->compute();
                  const Tensor t = make_tensor(*c.device, DType::f32, {1, 2, 3});
                  for (int call = 0; call < 3; ++call) c.world->all_reduce(s, t);
                  s.synchronize();
                  if (c.world->rank() == 1) throw Error("the disk is gone");
                  c.world->all_reduce(s, t);
                  s.synchronize();
                });
              }),
              HasSubstr("the disk is gone"));
}

TEST(LibraryOrder, WantsAProcessForEachRank) {
  LaunchOptions options;
  options.mpi.library_order = true;
  EXPECT_THAT(message_of<InvalidArgument>([&] { run_ranks(processes() + 1, options, [](RankContext&) {}); }),
              AllOf(HasSubstr("mpi.library_order = true"), HasSubstr("a process for each rank")));
}

std::string refusal(const MpiOptions& options) {
  const Job job = mpi_bootstrap(30s);
  const std::vector<std::shared_ptr<Device>> one{make_cpu_device({.label = "rank"})};
  std::vector<int> process_of(static_cast<size_t>(job.environment.size));
  for (size_t r = 0; r < process_of.size(); ++r) process_of[r] = static_cast<int>(r);
  try {
    make_mpi_world(one, process_of, job.store, options);
    return "accepted";
  } catch (const InvalidArgument& e) {
    return e.what();
  }
}

TEST(Options, ThatCannotBeAreAllNamed) {
  EXPECT_THAT(refusal({.timeout = 0ms, .poll = -1ms, .max_message = int64_t{1} << 31, .reduction_piece = 0}),
              AllOf(HasSubstr("timeout = 0 ms"), HasSubstr("mpi.poll = -1 ms"),
                    HasSubstr("mpi.max_message = 2147483648"), HasSubstr("mpi.reduction_piece = 0")));
  EXPECT_EQ(refusal({}), "accepted");
}

TEST(Options, AreEqualOnAllProcesses) {
  if (processes() == 1) GTEST_SKIP() << "one process";
  MpiOptions options;
  options.max_message = 1000 + (is_here(0, processes()) ? 1 : 0);
  EXPECT_THAT(refusal(options),
              AllOf(HasSubstr("1000"), HasSubstr("1001"), HasSubstr("give all processes the same")));
}

TEST(Ranks, NeedADeviceEach) {
  const Job job = mpi_bootstrap(30s);
  const std::vector<int> process_of(2, job.environment.rank);
  const std::vector<std::shared_ptr<Device>> one{make_cpu_device({.label = "rank"})};
  EXPECT_THROW(make_mpi_world(one, process_of, job.store, {}), InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
