// What is the MPI backend's own: long messages in pieces, waiting that costs no core, options.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <chrono>
#include <thread>

#include <sherd/comm/bootstrap/detail/mpi_bootstrap.h>
#include <sherd/comm/mpi/detail/mpi_world.h>

#include "comm/integer_tensors.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

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

// What the host has given back is still read by work that is queued: a reduction, which takes memory while it
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

// A call that moves data goes on while nobody asks for it, and while the compute stream works.
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

// As each process has one thread that looks at MPI and the others sleep, a second of waiting costs little.
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
