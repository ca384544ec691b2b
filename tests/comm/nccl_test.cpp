// Properties of the NCCL backend alone: its ends, its registrations, its limits; its errors are in
// nccl_failure_test.cpp. The suites that every backend passes run over it too (nccl_ranks.cpp).

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include <sherd/comm/core/detail/call_bytes.h>
#include <sherd/comm/nccl/detail/issue_order.h>

#include "comm/nccl_runs.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;

std::vector<float> random_numbers(int rank, int64_t count) {
  std::mt19937_64 random(static_cast<uint64_t>(rank) + 1);
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<size_t>(count));
  for (float& x : v) x = normal(random);
  return v;
}

class Ranks : public testing::TestWithParam<int> {};

TEST_P(Ranks, SumsOfF32AreRightToRounding) {
  const int ranks = GetParam();
  const int64_t n = 1003;
  std::vector<double> expected(static_cast<size_t>(ranks * n)), magnitude(expected.size());
  for (int r = 0; r < ranks; ++r) {
    const auto v = random_numbers(r, ranks * n);
    for (size_t i = 0; i < v.size(); ++i) {
      expected[i] += v[i];
      magnitude[i] += std::abs(v[i]);
    }
  }
  const Outcome outcome = run(cpu_devices(ranks), quick(60s), {}, [&](RankContext& c) {
    Stream& s = c.device->compute();
    const int rank = c.world->rank();
    const Tensor send = Tensor::empty(*c.device, {ranks * n}, DType::f32, "test");
    const Tensor recv = Tensor::empty(*c.device, {n}, DType::f32, "test");
    const auto v = random_numbers(rank, ranks * n);
    std::memcpy(send.raw(), v.data(), v.size() * sizeof(float));
    c.world->reduce_scatter(s, recv, send);
    c.world->all_reduce(s, send);
    s.synchronize();
    // One rounding of at most 2^-24 of the magnitude per addition.
    const double bound = ranks * std::ldexp(1.0, -24);
    for (int64_t i = 0; i < ranks * n; ++i) {
      const auto at = static_cast<size_t>(i);
      ASSERT_NEAR(send.data<float>()[i], expected[at], bound * magnitude[at]);
      if (i / n == rank) {
        ASSERT_EQ(recv.data<float>()[i % n], send.data<float>()[i]);
      }
    }
  });
  EXPECT_THAT(outcome.texts, Each(""));
}

template <class T>
void expect_one_rounding(int ranks, int64_t n) {
  SCOPED_TRACE(name_of(dtype_of<T>()));
  const Outcome outcome = run(cpu_devices(ranks), quick(60s), {}, [&](RankContext& c) {
    Stream& s = c.device->compute();
    const Tensor t = Tensor::empty(*c.device, {n}, dtype_of<T>(), "test");
    const auto mine = random_numbers(c.world->rank(), n);
    for (int64_t i = 0; i < n; ++i) t.data<T>()[i] = T(mine[static_cast<size_t>(i)]);
    c.world->all_reduce(s, t);
    s.synchronize();
    for (int64_t i = 0; i < n; ++i) {
      std::vector<float> level;
      for (int r = 0; r < ranks; ++r)
        level.push_back(static_cast<float>(T(random_numbers(r, n)[static_cast<size_t>(i)])));
      while (level.size() > 1) {
        std::vector<float> next;
        for (size_t k = 0; k + 1 < level.size(); k += 2) next.push_back(level[k] + level[k + 1]);
        if (level.size() % 2) next.push_back(level.back());
        level = next;
      }
      ASSERT_EQ(static_cast<float>(t.data<T>()[i]), static_cast<float>(T(level[0])));
    }
  });
  EXPECT_THAT(outcome.texts, Each(""));
}

TEST_P(Ranks, SumsOf16BitsAreRoundedOnceWithoutAnOption) {
  for (int64_t n : {1, 7, 40}) {  // less than a slice for everybody; uneven; even for some
    expect_one_rounding<bf16>(GetParam(), n);
    expect_one_rounding<f16>(GetParam(), n);
  }
}

TEST_P(Ranks, ASideChannelMovesWordsAndTextsOfAnyLength) {
  const int ranks = GetParam();
  const Outcome outcome = run(cpu_devices(ranks), quick(60s), {}, [&](RankContext& c) {
    Stream& s = c.device->compute();
    const int rank = c.world->rank();
    const auto side = c.world->side_channel(1h);
    const auto words = [&](int64_t n, int64_t first) {
      const Tensor t = Tensor::empty(*c.device, {n}, DType::i64, "test");
      std::iota(t.data<int64_t>(), t.data<int64_t>() + n, first);
      return t;
    };
    const auto value = [](const Tensor& t, int64_t i) { return t.data<int64_t>()[i]; };
    for (const int64_t n : {0, 1, 700, 20'000, 300'000}) {  // up to 2 MB: more than a value of the store has
      const int64_t first = 1'000'000 * rank;
      std::vector<int64_t> counts;
      for (int r = 0; r < ranks; ++r) counts.push_back(r % 2 == 0 ? n : n / 2);
      const Tensor mine = words(counts[static_cast<size_t>(rank)], first);
      const Tensor all = words(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 0);
      for (const int root : {0, ranks - 1}) {
        side->gather_v(s, rank == root ? all : Tensor(), counts, mine, root);
        const Tensor text = words(n, first);
        side->broadcast(s, text, root);
        s.synchronize();
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(value(text, i), 1'000'000 * root + i);
        int64_t at = 0;
        for (int r = 0; r < ranks && rank == root; ++r)
          for (int64_t i = 0; i < counts[static_cast<size_t>(r)]; ++i)
            ASSERT_EQ(value(all, at++), 1'000'000 * r + i);
      }
      const std::pair<ReduceOp, int64_t> reductions[] = {{ReduceOp::sum, 500'000 * ranks * (ranks - 1)},
                                                         {ReduceOp::min, 0},
                                                         {ReduceOp::max, 1'000'000 * (ranks - 1)}};
      for (const auto& [op, want] : reductions) {
        const Tensor t = words(std::min<int64_t>(n, 1), first);
        side->all_reduce(s, t, op);
        s.synchronize();
        for (int64_t i = 0; i < t.numel(); ++i) ASSERT_EQ(value(t, i), want);
      }
      side->barrier(s);
    }
    const Tensor other = Tensor::empty(*c.device, {1}, DType::f32, "test");
    EXPECT_THAT(message_of<NotSupported>([&] { side->all_reduce(s, other); }), HasSubstr("use clone()"));
    s.synchronize();
  });
  EXPECT_THAT(outcome.texts, Each(""));
}

TEST(NcclIssueOrder, OperationsAreIssuedInTheOrderOfTheirTurnsDroppedOnesToo) {
  const auto order = std::make_shared<nccl::IssueOrder>();
  std::vector<std::shared_ptr<const nccl::IssueOrder::Turn>> turns;
  for (int i = 0; i < 40; ++i) turns.push_back(order->take());
  std::mutex mutex;
  std::vector<int> issued;
  {
    std::vector<std::jthread> threads;
    for (int i = 39; i >= 0; --i)
      threads.emplace_back([&, i, turn = std::move(turns[static_cast<size_t>(i)])]() mutable {
        if (i % 4 == 3) return turn.reset();  // dropped
        turn->await([] {});
        {
          std::lock_guard lock(mutex);
          issued.push_back(i);
        }
        turn.reset();
      });
  }
  EXPECT_EQ(issued.size(), 30u);
  EXPECT_TRUE(std::ranges::is_sorted(issued));
  const auto first = order->take(), second = order->take();
  EXPECT_THROW(second->await([] { throw Error("the launch has failed"); }), Error);
}

INSTANTIATE_TEST_SUITE_P(Nccl, Ranks, testing::Values(1, 2, 3, 4, 5));

TEST(NcclEnd, EveryCommunicatorIsFinalizedAndDestroyedAndNoneAborted) {
  const Outcome outcome = run(cpu_devices(3), quick(60s), {.looks = 3}, [](RankContext& c) {
    const auto pair = c.world->split(c.world->rank() % 2, 0);
    const auto slow = pair->side_channel(1h);
    slow->barrier(c.device->compute());
    c.device->compute().synchronize();
  });
  EXPECT_THAT(outcome.texts, Each(""));
  const auto log = fake_nccl::log();
  EXPECT_EQ(log.made, 6) << "a side channel is none of NCCL's";
  EXPECT_EQ(log.finalized, 6);
  EXPECT_EQ(log.destroyed, 6);
  EXPECT_EQ(log.aborted, 0);
}

// NCCL's own thread finishes a split, so a communicator may come into being while the launch fails.
TEST(NcclEnd, WhatASplitMadeWhileTheLaunchFailedIsAbortedToo) {
  for (int i = 0; i < 12; ++i) {
    const Outcome outcome = run(cpu_devices(3), quick(60s), {.looks = 3}, [&](RankContext& c) {
      std::jthread other;
      if (c.world->rank() == 0)
        other = std::jthread([&] {
          std::this_thread::sleep_for(i * 1ms);
          c.world->abort("out of luck");
        });
      for (int k = 0; k < 100; ++k) c.world->clone();
    });
    EXPECT_THAT(outcome.texts, Each(HasSubstr("out of luck")));
    const auto log = fake_nccl::log();
    EXPECT_EQ(log.aborted, log.made);
    EXPECT_EQ(log.destroyed, 0);
    EXPECT_LT(outcome.seconds, 100);
  }
}

TEST(NcclMemory, IsInTheTableAndUnderTheLimit) {
  fake_nccl::reset();
  const auto device = fake_nccl::make_queue_device("rank 0", 0, int64_t{1} << 30);
  Allocator& memory = device->allocator();
  {
    const auto world = nccl::make_world(fake_nccl::api(), std::vector{device}, quick(60s)).front();
    EXPECT_EQ(memory.live_bytes("NCCL"), fake_nccl::kCommunicatorBytes);
    const auto clone = world->clone();
    EXPECT_EQ(memory.live_bytes("NCCL"), 2 * fake_nccl::kCommunicatorBytes);
    EXPECT_EQ(memory.live_bytes(MemoryClass::message), 2 * fake_nccl::kCommunicatorBytes);
    EXPECT_THAT(memory.format_table(), HasSubstr("NCCL"));
    world->barrier(device->compute());
    device->compute().synchronize();
  }
  EXPECT_EQ(memory.live_bytes("NCCL"), 0);

  const auto small = fake_nccl::make_queue_device("rank 0", 0, fake_nccl::kCommunicatorBytes * 3 / 2);
  const auto world = nccl::make_world(fake_nccl::api(), std::vector{small}, quick(60s)).front();
  EXPECT_THAT(message_of<OutOfMemory>([&] { world->clone(); }), HasSubstr("NCCL"));
}

TEST(NcclMemory, OfTheFirstCallIsCountedToo) {
  fake_nccl::reset();
  const auto device = fake_nccl::make_queue_device("rank 0", 0, int64_t{1} << 30);
  const auto in_table = [&] { return device->allocator().live_bytes("NCCL"); };
  {
    const auto world = nccl::make_world(fake_nccl::api(), std::vector{device}, quick(60s)).front();
    const auto first = world->clone(), second = world->clone();
    EXPECT_EQ(in_table(), 3 * fake_nccl::kCommunicatorBytes);
    const auto side = device->make_stream("side");
    for (int i = 0; i < 2; ++i) {  // beside each other
      first->barrier(device->compute());
      second->barrier(*side);
    }
    device->compute().synchronize();
    side->synchronize();
    EXPECT_EQ(in_table(), 3 * fake_nccl::kCommunicatorBytes + 2 * fake_nccl::kFirstCallBytes);
  }
  EXPECT_EQ(in_table(), 0);

  const auto small = fake_nccl::make_queue_device(
      "rank 0", 0, fake_nccl::kCommunicatorBytes + fake_nccl::kFirstCallBytes / 2);
  const auto world = nccl::make_world(fake_nccl::api(), std::vector{small}, quick(60s)).front();
  EXPECT_THAT(message_of<OutOfMemory>([&] {
                world->barrier(small->compute());
                small->compute().synchronize();
              }),
              HasSubstr("NCCL"));
}

// Sums in NVLink's switches have another order in each call.
TEST(NcclEnd, SwitchesSumOnlyWhereTheOptionOrTheEnvironmentAllowsIt) {
  const auto after = [](const char* set, bool nvls) {
    set ? setenv("NCCL_NVLS_ENABLE", set, 1) : unsetenv("NCCL_NVLS_ENABLE");
    NcclOptions options = quick(60s);
    options.nvls = nvls;
    EXPECT_THAT(run(cpu_devices(2), options, {}, [](RankContext&) {}).texts, Each(""));
    const char* const found = std::getenv("NCCL_NVLS_ENABLE");
    const std::string value = found ? found : "unset";
    unsetenv("NCCL_NVLS_ENABLE");
    return value;
  };
  EXPECT_EQ(after(nullptr, false), "0");
  EXPECT_EQ(after("1", false), "1");
  EXPECT_EQ(after(nullptr, true), "unset");
}

TEST(NcclRegistration, HappensOncePerRangeAndIsUndone) {
  NcclOptions options = quick(60s);
  options.register_buffers = true;
  const Outcome outcome = run(cpu_devices(2), options, {}, [](RankContext& c) {
    Stream& s = c.device->compute();
    const Tensor whole = make_tensor(*c.device, DType::f32, poison(8));
    for (int i = 0; i < 5; ++i) {
      c.world->all_reduce(s, whole);
      c.world->reduce_scatter(s, whole.flat(4 * c.world->rank(), 4 * c.world->rank() + 4), whole);
    }
    c.world->all_reduce(s, whole.flat(3, 3));  // nothing to register
    s.synchronize();
  });
  EXPECT_THAT(outcome.texts, Each(""));
  EXPECT_EQ(fake_nccl::log().registered, 2);
  EXPECT_EQ(fake_nccl::log().deregistered, 2);
}

TEST(NcclRegistration, EndsBeforeMemoryGoesBackToTheSystem) {
  NcclOptions options = quick(60s);
  options.register_buffers = true;
  const auto one_block = [](int rank) {
    return fake_nccl::make_queue_device("rank " + std::to_string(rank), 1);
  };
  const Outcome outcome = run({one_block(0), one_block(1)}, options, {}, [](RankContext& c) {
    Stream& s = c.device->compute();
    const auto sum_of = [&](int64_t n) {
      const Tensor t = make_tensor(*c.device, DType::i32, Ints(static_cast<size_t>(n), 1));
      c.world->all_reduce(s, t);
      EXPECT_EQ(read_tensor(s, t), Ints(static_cast<size_t>(n), 2));
      s.synchronize();  // the queue keeps the tensor until it sees that the call is done
    };
    sum_of(8);
    sum_of(8);  // in the same block
    const auto other = c.world->clone();
    EXPECT_EQ(fake_nccl::log().registered, 2);
    EXPECT_EQ(fake_nccl::log().deregistered, 0);
    c.world->clone();
    sum_of(800);  // for which that block has to go
    c.world->side_channel(60s);
    EXPECT_EQ(fake_nccl::log().registered, 4);
    EXPECT_EQ(fake_nccl::log().deregistered, 2);
    c.world->side_channel(60s);  // both have looked
  });
  EXPECT_THAT(outcome.texts, Each(""));
  EXPECT_EQ(fake_nccl::log().deregistered, 4);
}

// Devices that run beside the host: the call has been issued long since, and the wait must fail.

TEST(NcclQueue, SumsAndSplitsAfterWorkThatIsUnderWay) {
  const Outcome outcome = run(queue_devices(4), quick(60s), {}, [](RankContext& c) {
    Stream& s = c.device->compute();
    const Tensor t = make_tensor(*c.device, DType::i64, {1, c.world->rank()});
    if (c.world->rank() == 0) std::this_thread::sleep_for(50ms);  // the others' is under way until then
    c.world->all_reduce(s, t);
    const auto pair = c.world->split(c.world->rank() / 2, 0);
    pair->all_reduce(s, t);
    EXPECT_EQ(read_tensor(s, t), (Ints{8, 12}));
  });
  EXPECT_THAT(outcome.texts, Each(""));
  EXPECT_EQ(fake_nccl::log().destroyed, 8);
}

TEST(NcclQueue, SlicesSurviveKernelsThatUseScratchMemory) {
  const Outcome outcome = run(queue_devices(3), quick(60s), {.at_once = false}, [](RankContext& c) {
    Stream& s = c.device->compute();
    for (int64_t n : {4, 700}) {
      Ints expected;
      for (int64_t i = 0; i < n; ++i) expected.push_back(value_of(0, i) + value_of(1, i) + value_of(2, i));
      const Tensor t = make_tensor(*c.device, DType::bf16, data_of(c.world->rank(), 0, n));
      c.world->all_reduce(s, t);
      EXPECT_EQ(read_tensor(s, t), expected);
    }
  });
  EXPECT_THAT(outcome.texts, Each(""));
}

TEST(NcclQueue, TimeoutFailsWaitsForTheDevice) {
  const auto [timeout, outcome] =
      run_until_late(true, {.silent = 2}, "all_reduce #1", [](RankContext& c, Signs&) {
        Stream& s = c.device->compute();
        c.world->all_reduce(s, make_tensor(*c.device, DType::f32, poison(8)));
        const Event event = s.record();
        const auto other = c.device->make_stream("other");
        other->wait(event);
        const Event later = other->record();
        EXPECT_THROW(event.synchronize(), CommError);
        EXPECT_THROW(later.synchronize(), CommError);
        EXPECT_THROW(c.world->clone(), CommError);
        c.world->barrier(s);
        s.synchronize();
      });
  EXPECT_THAT(outcome.texts, Each(HasSubstr(not_done(timeout))));
  EXPECT_THAT(outcome.texts, Each(HasSubstr("all_reduce #1")));
  EXPECT_EQ(fake_nccl::log().aborted, 3);
}

TEST(NcclQueue, AnAbortReachesRanksWhoseCallsAreUnderWay) {
  const Outcome outcome = run(queue_devices(4), quick(1h), {}, [](RankContext& c) {
    Stream& s = c.device->compute();
    if (c.world->rank() == 3) {
      std::this_thread::sleep_for(50ms);
      c.world->abort("out of luck");
      c.world->abort("not this");
    } else {
      c.world->barrier(s);
    }
    s.synchronize();
    if (c.world->rank() == 3) c.world->clone();
  });
  EXPECT_THAT(outcome.texts, Each(HasSubstr("aborted because rank 3 failed: out of luck")));
  EXPECT_EQ(fake_nccl::log().aborted, 4);
  EXPECT_LT(outcome.seconds, 100);
}

TEST(NcclQueue, AnErrorOfNcclBetweenCallsIsFoundByTheWatchdog) {
  const Outcome outcome =
      run(queue_devices(2), quick(1h), {.error_on = 0, .error_after = 1, .looks = 0}, [](RankContext& c) {
        Stream& s = c.device->compute();
        c.world->barrier(s);
        c.world->barrier(s);
        s.synchronize();
      });
  EXPECT_THAT(outcome.texts, Each(HasSubstr("imitated remote error")));
}

TEST(NcclAgreement, CallsSurviveTheStoreAndDamagedOnesDoNot) {
  comm::Call call{.op = "all_to_all_v",
                  .sequence = 7,
                  .dtype = DType::bf16,
                  .elements = 9,
                  .counts = {1, 2},
                  .root = 3,
                  .purpose = Purpose("the test"),
                  .reduce = ReduceOp::min,
                  .send_counts = {4},
                  .recv_counts = {5, 6}};
  const std::string bytes = comm::encode(call);
  const auto back = comm::decode_call(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(describe(*back), describe(call));
  EXPECT_EQ(comm::encode(*back), bytes);
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(comm::decode_call(bytes.substr(0, n)));
  EXPECT_FALSE(comm::decode_call(bytes + "x"));
  std::string huge = bytes;
  const size_t counts = 3 * sizeof(int64_t) + sizeof(DType) + sizeof(int) + sizeof(ReduceOp);
  huge[counts + 7] = 0x70;  // a promise of 2^62 counts
  EXPECT_FALSE(comm::decode_call(huge));
}

}  // namespace
}  // namespace sherd::test
