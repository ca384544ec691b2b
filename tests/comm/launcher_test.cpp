#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include <sherd/comm/backend.h>
#include <sherd/comm/bootstrap/detail/tcp_store.h>

#include "comm/integer_tensors.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;

/// Variables of this process, which go again.
class Environment {
 public:
  using Variables = std::map<std::string, std::string>;
  explicit Environment(Variables variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : variables_) unsetenv(name.c_str());
  }

  Environment(const Environment&) = delete;

 private:
  const Variables variables_;
};

template <class E>
std::string refusal(int ranks, const LaunchOptions& options) {
  try {
    launch(ranks, options, [](RankContext&) { ADD_FAILURE() << "it ran"; });
    return "accepted";
  } catch (const E& e) {
    return e.what();
  }
}

TEST(Launch, AnUnreadFailureOfAStreamEndsTheRank) {
  EXPECT_THROW(launch(2,
                      [](RankContext& c) {
                        const auto side = c.device->make_stream("side");
                        if (c.world->rank() == 1)
                          side->submit("fail", [](ExecutionContext&) { throw IoError("disk full"); });
                      }),
               IoError);
}

// A rank that only issues gets the failure of a peer at one of its next calls, not at its final wait.
TEST(Launch, ARankThatOnlyIssuesDetectsAFailedPeer) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(launch(2,
                      [](RankContext& c) {
                        Stream& s = c.device->compute();
                        if (c.world->rank() == 1) throw IoError("disk full");
                        for (;;) c.world->barrier(s);
                      }),
               IoError);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 100s);
}

// Four ranks, two streams each with room for one operation, which wait for each other and for their peers.
TEST(Launch, FullQueuesDoNotStopCollectives) {
  for (const int64_t most : {1, 2, 3}) {
    LaunchOptions options;
    options.device.max_queued_work = most;
    launch(4, options, [&](RankContext& c) {
      Stream& s = c.device->compute();
      const auto side = c.device->make_stream("side");
      const auto half = c.world->split(c.world->rank() % 2, 0), own = c.world->clone();
      const Tensor a = make_tensor(*c.device, DType::i32, {0, 1, 2, 3});
      const Tensor b = make_tensor(*c.device, DType::i32, {1, 1, 1, 1});
      for (int i = 0; i < 30; ++i) {
        c.world->all_reduce(s, a, ReduceOp::max);
        side->wait(s.record());
        half->all_reduce(*side, b, ReduceOp::max);
        own->barrier(*side);
        c.world->barrier(s);
        s.wait(side->record());
      }
      s.synchronize();
      EXPECT_EQ(c.device->run_ahead().peak_work(), most);
    });
  }
}

TEST(Launch, GivesEveryRankItsOwnDeviceThreadAndNumber) {
  std::mutex mutex;
  std::set<int> numbers;
  std::set<Device*> devices;
  std::set<std::thread::id> threads;
  launch(5, [&](RankContext& c) {
    std::lock_guard lock(mutex);
    numbers.insert(c.world->rank());
    devices.insert(c.device.get());
    threads.insert(std::this_thread::get_id());
    EXPECT_EQ(c.world->size(), 5);
    EXPECT_EQ(c.world->world_rank(), c.world->rank());
    EXPECT_EQ(&c.world->device(), c.device.get());
    EXPECT_EQ(c.device->label(), "rank " + std::to_string(c.world->rank()));
  });
  EXPECT_EQ(numbers, (std::set<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(devices.size(), 5u);
  EXPECT_EQ(threads.size(), 5u);
}

TEST(Launch, AppliesItsOptions) {
  LaunchOptions options;
  options.device.threads = 3;
  options.device.memory_limit = 4096;
  options.device.kernels = KernelSet::reference;
  launch(2, options, [](RankContext& c) {
    EXPECT_EQ(c.device->allocator().limit_bytes(), 4096);
    EXPECT_EQ(c.device->kernel_set(), KernelSet::reference);
    c.device->compute().submit("threads", [](ExecutionContext& x) { EXPECT_EQ(x.threads, 3); });
  });
}

TEST(Launch, RefusesOptionsThatCannotBeRight) {
  const auto nothing = [](RankContext&) { FAIL(); };
  EXPECT_THROW(launch(0, nothing), InvalidArgument);
  EXPECT_THROW(launch(-2, nothing), InvalidArgument);
  EXPECT_THROW(launch(1025, nothing), InvalidArgument);
  EXPECT_THROW(launch(2, {.device = {.kernels = static_cast<KernelSet>(7)}}, nothing), InvalidArgument);
  EXPECT_THROW(launch(2, {.device = {.threads = -1}}, nothing), InvalidArgument);
  EXPECT_THROW(launch(2, {.timeout = 0ms}, nothing), InvalidArgument);
}

template <class Parse>
std::string refused_name(Parse parse, const char* name) {
  try {
    parse(name);
    return "accepted";
  } catch (const InvalidArgument& e) {
    return e.what();
  }
}

TEST(LaunchOptionNames, AreWhatTheirEnumeratorsAreCalled) {
  for (const Backend& b : backends()) {
    EXPECT_EQ(parse_backend(b.name), b.kind);
    EXPECT_STREQ(name_of(b.kind), b.name);
  }
  EXPECT_EQ(&backend_of(BackendKind::nccl), &backends()[1]);
  for (const char* name : {"env", "mpi", "none"}) EXPECT_STREQ(name_of(parse_bootstrap(name)), name);
  for (const char* name : {"cpu", "cuda"}) EXPECT_STREQ(name_of(parse_device_kind(name)), name);
  for (const char* name : {"cpu", "reference"}) EXPECT_STREQ(name_of(parse_cpu_kernels(name)), name);
  for (const char* name : {"blocks", "hopper"}) EXPECT_STREQ(name_of(parse_symmetric_products(name)), name);
  for (const char* name : {"auto", "own", "cudnn"}) EXPECT_STREQ(name_of(parse_attention(name)), name);
}

TEST(LaunchOptionNames, AreRefusedWithTheOptionAndAllLegalOnes) {
  EXPECT_EQ(refused_name(parse_backend, "smoke"), "backend 'smoke' is unknown; use local, nccl or mpi");
  EXPECT_EQ(refused_name(parse_bootstrap, "slurm"), "job.bootstrap 'slurm' is unknown; use env, mpi or none");
  EXPECT_EQ(refused_name(parse_device_kind, "tpu"), "device.kind 'tpu' is unknown; use cpu or cuda");
  EXPECT_EQ(refused_name(parse_cpu_kernels, ""), "device.kernels '' is unknown; use cpu or reference");
  EXPECT_EQ(refusal<InvalidArgument>(1, {.backend = static_cast<BackendKind>(7)}),
            "backend '7' is unknown; use local, nccl or mpi");
}

TEST(LaunchInAJob, LoneCopiesAreRefusedUnlessTheyAreAskedFor) {
  for (const char* name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const Environment environment(Environment::Variables{{name, "8"}});
    EXPECT_THAT(refusal<InvalidArgument>(2, {}),
                AllOf(HasSubstr(std::string(name) + " is 8: this is one of 8 processes"),
                      HasSubstr("backend = nccl"), HasSubstr("job.bootstrap = none")));
    int ran = 0;
    launch(1, {.job = {.bootstrap = Bootstrap::none}}, [&](RankContext&) { ++ran; });
    EXPECT_EQ(ran, 1);
  }
  for (const char* alone : {"1", ""}) {
    const Environment environment(Environment::Variables{{"WORLD_SIZE", alone}, {"RANK", "0"}});
    launch(2, [](RankContext& c) { EXPECT_EQ(c.world->size(), 2); });
  }
}

TEST(LaunchInAJob, ProcessesOfMpiAreNotThreads) {
  EXPECT_THAT(
      refusal<InvalidArgument>(2, {.job = {.bootstrap = Bootstrap::none}, .backend = BackendKind::mpi}),
      AllOf(HasSubstr("job.bootstrap = none with backend = mpi"), HasSubstr("backend = local")));
}

TEST(LaunchInAJob, ARankThatCannotContinueReportsItToTheOthers) {
  ServerStore server("127.0.0.1", 0, 2, 1s);
  const Environment environment(Environment::Variables{{"RANK", "1"},
                                                       {"WORLD_SIZE", "2"},
                                                       {"LOCAL_RANK", "1"},
                                                       {"MASTER_ADDR", "127.0.0.1"},
                                                       {"SHERD_STORE_PORT", std::to_string(server.port())}});
  const std::string text = refusal<InvalidArgument>(
      3, {.device = {.kind = DeviceKind::cuda}, .backend = BackendKind::nccl, .timeout = 5s});
  EXPECT_THAT(text, AllOf(HasSubstr("ranks = 3: the job has 2 processes; give ranks = 2"),
                          HasSubstr("job.bootstrap = none")));
  const auto notice = announced(server);
  ASSERT_TRUE(notice);
  EXPECT_EQ(notice->rank, 1);
  EXPECT_EQ(notice->cause, "rank 1 failed before it joined: " + text);
}

TEST(Launch, AcceptsATimeoutOfForever) {
  launch(2, {.timeout = std::chrono::milliseconds::max()},
         [](RankContext& c) { c.world->barrier(c.device->compute()); });
}

TEST(Launch, RethrowsTheFirstFailure) {
  try {
    launch(3, [](RankContext& c) {
      if (c.world->rank() == 2) throw OutOfMemory("early");
      try {
        c.world->barrier(c.device->compute());
        c.device->compute().synchronize();
      } catch (const CommError&) {  // of rank 2's failure: what comes now is later
        if (c.world->rank() == 0) throw std::logic_error("late");
        throw;
      }
    });
    FAIL();
  } catch (const OutOfMemory& e) {
    EXPECT_STREQ(e.what(), "early");
  }
}

TEST(Launch, RethrowsWhatIsNotAStdException) {
  EXPECT_THROW(launch(2,
                      [](RankContext& c) {
                        if (c.world->rank() == 1) throw 42;
                        c.world->barrier(c.device->compute());
                      }),
               int);
}

TEST(Launch, FinishesQueuedWorkBeforeItReturns) {
  std::atomic<int> ran{0};
  launch(3, [&](RankContext& c) {
    for (int i = 0; i < 10; ++i) {
      c.world->barrier(c.device->compute());
      c.device->compute().submit("count", [&](ExecutionContext&) { ++ran; });
    }
  });
  EXPECT_EQ(ran.load(), 30);
}

TEST(Launch, ReportsWorkThatFailsAfterTheBodyReturned) {
  EXPECT_THROW(launch(2,
                      [](RankContext& c) {
                        if (c.world->rank() == 1)
                          c.device->compute().submit("bad",
                                                     [](ExecutionContext&) { throw std::domain_error("x"); });
                      }),
               std::domain_error);
}

TEST(Launch, RunsOneAfterAnotherAndInsideEachOther) {
  launch(2, [](RankContext& outer) {
    launch(2, [&](RankContext& inner) { EXPECT_NE(inner.device, outer.device); });
    outer.world->barrier(outer.device->compute());
  });
}

}  // namespace
}  // namespace sherd::test
