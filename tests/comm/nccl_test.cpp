// What is NCCL's own: its errors, its ends, what it cannot promise. The suites that every backend passes run
// over it too (nccl_ranks.cpp).
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include <sherd/comm/nccl/agreement.h>
#include <sherd/comm/nccl/nccl_communicator.h>
#include <sherd/comm/tcp_store.h>

#include "comm/fake_nccl.h"
#include "comm/integer_tensors.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

NcclOptions quick(std::chrono::milliseconds timeout = 300ms) { return {.timeout = timeout, .poll = 10ms}; }

std::vector<std::shared_ptr<Device>> cpu_devices(int ranks) {
  std::vector<std::shared_ptr<Device>> devices;
  for (int r = 0; r < ranks; ++r) devices.push_back(make_cpu_device({.label = "rank " + std::to_string(r)}));
  return devices;
}
std::vector<std::shared_ptr<Device>> queue_devices(int ranks) {
  std::vector<std::shared_ptr<Device>> devices;
  for (int r = 0; r < ranks; ++r)
    devices.push_back(fake_nccl::make_queue_device("rank " + std::to_string(r)));
  return devices;
}

/// What each rank ended with ("" when it ended well), and how long it took.
struct Outcome {
  std::vector<std::string> texts;
  double seconds = 0;
};

/// Makes a world over the devices and runs body on its ranks.
Outcome run(std::vector<std::shared_ptr<Device>> devices, const NcclOptions& options,
            const fake_nccl::Faults& faults, const std::function<void(RankContext&)>& body) {
  fake_nccl::reset(faults);
  Outcome outcome;
  outcome.texts.resize(devices.size());
  const auto start = std::chrono::steady_clock::now();
  {
    const auto worlds = nccl::make_world(fake_nccl::api(), devices, options);
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < devices.size(); ++r)
      threads.emplace_back([&, r] {
        RankContext context{devices[r], worlds[r]};
        try {
          body(context);
        } catch (const CommError& e) {
          outcome.texts[r] = e.what();
        }
      });
  }
  devices.clear();
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_THAT(fake_nccl::log().violations, IsEmpty());
  return outcome;
}

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
  const Outcome outcome = run(cpu_devices(ranks), quick(10s), {}, [&](RankContext& c) {
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
  const Outcome outcome = run(cpu_devices(ranks), quick(10s), {}, [&](RankContext& c) {
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

INSTANTIATE_TEST_SUITE_P(Nccl, Ranks, testing::Values(1, 2, 3, 4, 5));

TEST(NcclEnd, EveryCommunicatorIsFinalizedAndDestroyedAndNoneAborted) {
  const Outcome outcome = run(cpu_devices(3), quick(10s), {.looks = 3}, [](RankContext& c) {
    const auto pair = c.world->split(c.world->rank() % 2, 0);
    const auto slow = pair->side_channel(1h);
    slow->barrier(c.device->compute());
    c.device->compute().synchronize();
  });
  EXPECT_THAT(outcome.texts, Each(""));
  const auto log = fake_nccl::log();
  EXPECT_EQ(log.made, 9);
  EXPECT_EQ(log.finalized, 9);
  EXPECT_EQ(log.destroyed, 9);
  EXPECT_EQ(log.aborted, 0);
}

// NCCL's own thread finishes a split, so a communicator may come into being while the launch fails.
TEST(NcclEnd, WhatASplitMadeWhileTheLaunchFailedIsAbortedToo) {
  for (int i = 0; i < 12; ++i) {
    const Outcome outcome = run(cpu_devices(3), quick(10s), {.looks = 3}, [&](RankContext& c) {
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
    EXPECT_LT(outcome.seconds, 5);
  }
}

TEST(NcclRegistration, HappensOncePerRangeAndIsUndone) {
  NcclOptions options = quick(10s);
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
  NcclOptions options = quick(10s);
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
    c.world->clone();
    EXPECT_EQ(fake_nccl::log().registered, 4);
    EXPECT_EQ(fake_nccl::log().deregistered, 2);
  });
  EXPECT_THAT(outcome.texts, Each(""));
  EXPECT_EQ(fake_nccl::log().deregistered, 4);
}

TEST(NcclFailure, ARankThatIsBehindIsNamedWithWhatItCalledLast) {
  for (const auto& devices : {cpu_devices(3), queue_devices(3)}) {
    const Outcome outcome = run(devices, quick(), {}, [](RankContext& c) {
      Stream& s = c.device->compute();
      const auto group = c.world->split(0, -c.world->rank());
      const Tensor t = make_tensor(*c.device, DType::f32, poison(8));
      c.world->all_reduce(s, t);
      group->barrier(s);
      if (c.world->rank() != 2) group->all_reduce(s, t);
      if (c.world->rank() == 2) std::this_thread::sleep_for(600ms);  // busy with something else
      s.synchronize();
    });
    EXPECT_THAT(outcome.texts[0], AllOf(HasSubstr("all_reduce #2 (sum, f32, 8 elements, 32 bytes) on rank"),
                                        HasSubstr("not done 300 ms after it was issued; it waits for others: "
                                                  "rank 2 came to barrier #1"),
                                        HasSubstr("--nccl-check-calls (NcclOptions::check_calls)")));
    EXPECT_LT(outcome.seconds, 5);
  }
  const Outcome outcome = run(queue_devices(3), quick(), {}, [](RankContext& c) {
    Stream& s = c.device->compute();
    if (c.world->rank() != 1) c.world->barrier(s);
    if (c.world->rank() != 1) s.synchronize();
    if (c.world->rank() == 1) std::this_thread::sleep_for(600ms);
  });
  EXPECT_THAT(outcome.texts[0], HasSubstr("it waits for others: rank 1 has called nothing there"));
}

// A process that ends is seen by NCCL's sockets as soon as by the store, which knows which one it was.
TEST(NcclFailure, TheNoticeOfAProcessThatEndedWinsOverTheErrorsItCauses) {
  for (const bool queue : {false, true}) {
    fake_nccl::reset({.error_on = 0, .error_after = 1});
    const auto store = make_memory_store();
    std::vector<std::string> texts(2);
    {
      std::vector<std::jthread> ranks;
      for (int r = 0; r < 2; ++r)
        ranks.emplace_back([&, r] {
          const std::string label = "rank " + std::to_string(r);
          const auto device = queue ? fake_nccl::make_queue_device(label) : make_cpu_device({.label = label});
          const auto world = nccl::make_world(fake_nccl::api(), device, store, r, 2, quick(1h));
          try {
            world->barrier(device->compute());
            world->barrier(device->compute());
            device->compute().synchronize();
          } catch (const CommError& e) {
            texts[static_cast<size_t>(r)] = e.what();
          }
        });
      std::this_thread::sleep_for(400ms);
      announce(*store, {2, "rank 2's process ended"});
    }
    EXPECT_THAT(texts, Each(HasSubstr("aborted because rank 2's process ended")));
  }
}

TEST(NcclFailure, AnErrorOfNcclIsToldToAllRanksAndEndsEveryCommunicator) {
  const Outcome outcome =
      run(cpu_devices(3), quick(10s), {.error_on = 1, .error_after = 4}, [](RankContext& c) {
        Stream& s = c.device->compute();
        const auto clone = c.world->clone();
        const Tensor t = make_tensor(*c.device, DType::f32, poison(8));
        for (int i = 0; i < 10; ++i) c.world->all_reduce(s, t);
        s.synchronize();
      });
  EXPECT_THAT(outcome.texts, Each(AllOf(HasSubstr("all_reduce #4 (sum, f32, 8 elements, 32 bytes) on rank 1"),
                                        HasSubstr("imitated remote error (as the test asked for)"))));
  EXPECT_THAT(outcome.texts[0], HasSubstr("on rank 0: aborted because"));
  const auto log = fake_nccl::log();
  EXPECT_EQ(log.aborted, 6);
  EXPECT_EQ(log.destroyed, 0);
  EXPECT_LT(outcome.seconds, 5);
}

TEST(NcclFailure, ARankThatStopsAnsweringIsATimeoutEvenWithoutCheckedCalls) {
  const Outcome outcome = run(cpu_devices(3), quick(), {.silent = 2}, [](RankContext& c) {
    Stream& s = c.device->compute();
    const Tensor t = make_tensor(*c.device, DType::f32, poison(8));
    c.world->all_reduce(s, t);
    s.synchronize();
  });
  EXPECT_THAT(outcome.texts,
              Each(AllOf(HasSubstr("all_reduce #1 (sum, f32, 8 elements, 32 bytes) on rank"),
                         HasSubstr("not done 300 ms after it was issued"), HasSubstr("check_calls"))));
  EXPECT_EQ(fake_nccl::log().aborted, 3);
  EXPECT_GT(outcome.seconds, 0.25);
  EXPECT_LT(outcome.seconds, 5);
}

TEST(NcclFailure, MessagesTimeOutToo) {
  const Outcome outcome = run(cpu_devices(3), quick(), {}, [](RankContext& c) {
    Stream& s = c.device->compute();
    const Tensor t = make_tensor(*c.device, DType::f32, poison(8));
    if (c.world->rank() == 1) c.world->recv(s, t, 2);
    if (c.world->rank() == 1) s.synchronize();
  });
  EXPECT_THAT(outcome.texts[1],
              HasSubstr("recv #1 (f32, 8 elements, 32 bytes) on rank 1 from rank 2: not done"));
}

TEST(NcclFailure, InitialisationOfOneRankFailsForAll) {
  for (const fake_nccl::Faults& faults : {fake_nccl::Faults{.id_fails = true}, {.init_fails_on = 2}}) {
    fake_nccl::reset(faults);
    const auto devices = cpu_devices(3);
    std::string text;
    try {
      nccl::make_world(fake_nccl::api(), devices, quick(10s));
    } catch (const CommError& e) {
      text = e.what();
    }
    const char* const rank = faults.id_fails ? "rank 0" : "rank 2";
    EXPECT_THAT(text, AllOf(HasSubstr(std::string("making the world on ") + rank + " of 3: NCCL: imitated"),
                            Not(HasSubstr("aborted because"))));
    EXPECT_EQ(fake_nccl::log().aborted, fake_nccl::log().made);
    EXPECT_THAT(fake_nccl::log().violations, IsEmpty());
  }
}

TEST(NcclFailure, RanksThatNeverComeAreNamed) {
  fake_nccl::reset();
  const auto store = make_memory_store();
  try {
    nccl::make_world(fake_nccl::api(), cpu_devices(1)[0], store, 1, 4, quick());
    FAIL();
  } catch (const CommError& e) {
    EXPECT_THAT(e.what(), HasSubstr("making the world on rank 1 of 4: waited 300 ms for ranks 0, 2, 3,"));
  }
  EXPECT_EQ(fake_nccl::log().made, 0);
}

TEST(NcclFailure, OptionsThatCannotBeRight) {
  const auto device = cpu_devices(1)[0];
  const auto store = make_memory_store();
  EXPECT_THROW(nccl::make_world(fake_nccl::api(), device, store, 2, 2, {}), InvalidArgument);
  EXPECT_THROW(nccl::make_world(fake_nccl::api(), device, store, 0, 1, {.timeout = 0ms}), InvalidArgument);
  EXPECT_THROW(nccl::make_world(fake_nccl::api(), device, store, 0, 1, {.poll = 0ms}), InvalidArgument);
  EXPECT_THROW(nccl::make_world(fake_nccl::api(), {}, {}), InvalidArgument);
}

/// A store that works for a while.
class DyingStore final : public Store {
 public:
  explicit DyingStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  std::atomic<bool> dead{false};

 protected:
  StoreReply ask(const StoreRequest& r) override {
    if (dead) throw CommError("the store is gone", 0);
    StoreReply reply;
    switch (r.op) {
      case StoreRequest::Op::set:
        store_->set(r.key, r.value);
        break;
      case StoreRequest::Op::set_once:
        reply.values = {store_->set_once(r.key, r.value)};
        break;
      case StoreRequest::Op::get:
        if (auto v = store_->get(r.key))
          reply.values = {*v};
        else
          return {};
        break;
      case StoreRequest::Op::all:
        if (auto v = store_->all(r.key, r.number))
          reply.values = *v;
        else
          return {};
        break;
      default:
        store_->erase(r.key);
    }
    reply.status = StoreReply::Status::ok;
    return reply;
  }

 private:
  const std::shared_ptr<Store> store_;
};

TEST(NcclFailure, TheLossOfTheStoreEndsTheWait) {
  fake_nccl::reset({.silent = 0});
  const auto store = std::make_shared<DyingStore>(make_memory_store());
  const auto device = fake_nccl::make_queue_device("rank 0");
  auto world = nccl::make_world(fake_nccl::api(), device, store, 0, 1, quick(1h));
  world->barrier(device->compute());
  store->dead = true;
  EXPECT_THROW(device->compute().synchronize(), CommError);
  world.reset();
  EXPECT_EQ(fake_nccl::log().aborted, 1);
}

// Devices that run beside the host: the call has been issued long since, and the wait must fail.

TEST(NcclQueue, SumsAndSplitsAfterWorkThatIsUnderWay) {
  const Outcome outcome = run(queue_devices(4), quick(10s), {}, [](RankContext& c) {
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
  const Outcome outcome = run(queue_devices(3), quick(10s), {.at_once = false}, [](RankContext& c) {
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
  const Outcome outcome = run(queue_devices(3), quick(), {.silent = 2}, [](RankContext& c) {
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
  EXPECT_THAT(outcome.texts, Each(HasSubstr("not done 300 ms after")));
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
  EXPECT_LT(outcome.seconds, 5);
}

TEST(NcclQueue, AnErrorOfNcclWhileNobodyCallsIsFoundByTheWatchdog) {
  const Outcome outcome =
      run(queue_devices(2), quick(1h), {.error_on = 0, .error_after = 1, .looks = 0}, [](RankContext& c) {
        Stream& s = c.device->compute();
        c.world->barrier(s);
        c.world->barrier(s);
        s.synchronize();
      });
  EXPECT_THAT(outcome.texts, Each(HasSubstr("imitated remote error")));
}

/// The world over a real store between ranks that share nothing else but the imitated NCCL.
TEST(NcclStore, WorksOverTcpAndALostRankEndsTheOthers) {
  fake_nccl::reset();
  const auto server = std::make_shared<ServerStore>("127.0.0.1", 0, 3, 2s);
  const int port = server->port();
  std::vector<std::string> texts(3);
  const auto rank_body = [&](int rank) {
    const auto device = fake_nccl::make_queue_device("rank " + std::to_string(rank));
    std::shared_ptr<Store> store = server;
    if (rank != 0) store = connect_store({rank, 3, rank, "127.0.0.1", port}, 10s);
    NcclOptions options = quick(1h);
    options.check_calls = true;
    const auto world = nccl::make_world(fake_nccl::api(), device, store, rank, 3, options);
    const auto reversed = world->split(0, -rank);
    EXPECT_EQ(reversed->rank(), 2 - rank);
    const Tensor t = make_tensor(*device, DType::i32, {rank});
    reversed->all_reduce(device->compute(), t);
    EXPECT_EQ(read_tensor(device->compute(), t), Ints{3});
    try {
      // As the store does when a connection breaks; see store_test.cpp.
      if (rank == 1) announce(*server, {1, "rank 1's process ended"});
      for (int i = 0; i < 1000; ++i) {
        world->barrier(device->compute());
        device->compute().synchronize();
      }
    } catch (const CommError& e) {
      texts[static_cast<size_t>(rank)] = e.what();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < 3; ++r) threads.emplace_back(rank_body, r);
  }
  EXPECT_THAT(texts, Each(HasSubstr("aborted because rank 1's process ended")));
  EXPECT_THAT(fake_nccl::log().violations, IsEmpty());
}

TEST(NcclAgreement, CallsSurviveTheStoreAndDamagedOnesDoNot) {
  local::Call call{.op = "all_to_all_v",
                   .sequence = 7,
                   .dtype = DType::bf16,
                   .elements = 9,
                   .counts = {1, 2},
                   .root = 3,
                   .reduce = ReduceOp::min,
                   .send_counts = {4},
                   .recv_counts = {5, 6}};
  const std::string bytes = nccl::encode(call);
  const auto back = nccl::decode(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(describe(*back), describe(call));
  EXPECT_EQ(nccl::encode(*back), bytes);
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(nccl::decode(bytes.substr(0, n)));
  EXPECT_FALSE(nccl::decode(bytes + "x"));
  std::string huge = bytes;
  huge[6 * 8 + 7] = 0x70;  // a promise of 2^62 counts
  EXPECT_FALSE(nccl::decode(huge));
}

}  // namespace
}  // namespace sherd::test
