// Failures of NCCL's backend: its end and its messages.

#include <atomic>
#include <chrono>
#include <thread>

#include <sherd/comm/bootstrap/detail/tcp_store.h>

#include "comm/nccl_runs.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;

TEST(NcclFailure, ALateRankIsNamedWithItsLastCall) {
  for (const bool queue : {false, true}) {
    const auto body = [](RankContext& c, Signs& signs) {
      Stream& s = c.device->compute();
      const auto group = c.world->split(0, -c.world->rank());
      const Tensor t = make_tensor(*c.device, DType::f32, poison(8));
      c.world->all_reduce(s, t);
      group->barrier(s);
      if (c.world->rank() == 2) return signs.await_failures({0, 1});  // busy with something else
      group->all_reduce(s, t);
      s.synchronize();
    };
    const auto [timeout, outcome] =
        run_until_late(queue, {}, "it waits for others: rank 2 came to barrier #1", body);
    EXPECT_THAT(outcome.texts[0],
                AllOf(HasSubstr("all_reduce #2 (sum, f32, 8 elements, 32 bytes) on rank"),
                      HasSubstr(not_done(timeout) + "; it waits for others: rank 2 came to barrier #1"),
                      HasSubstr("nccl.check_calls compares every call")));
    EXPECT_LT(outcome.seconds, 100);
  }
  const std::string silent = "it waits for others: rank 1 has called nothing there";
  const Outcome outcome = run_until_late(true, {}, silent, [](RankContext& c, Signs& signs) {
                            if (c.world->rank() == 1) return signs.await_failures({0, 2});
                            c.world->barrier(c.device->compute());
                            c.device->compute().synchronize();
                          }).second;
  EXPECT_THAT(outcome.texts[0], HasSubstr(silent));
}

/// A store that another one stands behind.
class StoreInFront : public Store {
 public:
  explicit StoreInFront(std::shared_ptr<Store> store) : store_(std::move(store)) {}

 protected:
  StoreReply ask(const StoreRequest& r) override {
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
      case StoreRequest::Op::add:
        reply.number = store_->add(r.key, r.number);
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
  const std::shared_ptr<Store> store_;
};

/// A store that knows of a process's end a little later than NCCL: it is first told who asks after NCCL's
/// error.
class LateNotice final : public StoreInFront {
 public:
  LateNotice() : StoreInFront(make_memory_store()) {}

 protected:
  StoreReply ask(const StoreRequest& r) override {
    if (fake_nccl::log().errors > 0) announce(*store_, {2, "rank 2's process ended"});
    return StoreInFront::ask(r);
  }
};

// A process that ends is seen by NCCL's sockets as soon as by the store, which knows which one it was.
TEST(NcclFailure, TheReportOfAnEndedProcessWinsOverTheErrorsItCauses) {
  for (const bool queue : {false, true}) {
    fake_nccl::reset({.error_on = 0, .error_after = 1});
    const auto store = std::make_shared<LateNotice>();
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
    }
    EXPECT_GT(fake_nccl::log().errors, 0);
    EXPECT_THAT(texts, Each(HasSubstr("aborted because rank 2's process ended")));
  }
}

TEST(NcclFailure, AnErrorOfNcclIsReportedToAllRanksAndEndsEveryCommunicator) {
  const Outcome outcome =
      run(cpu_devices(3), quick(60s), {.error_on = 1, .error_after = 4}, [](RankContext& c) {
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
  EXPECT_LT(outcome.seconds, 100);
}

TEST(NcclFailure, ARankThatStopsAnsweringIsATimeoutEvenWithoutCheckedCalls) {
  const std::string what = "all_reduce #1 (sum, f32, 8 elements, 32 bytes) on rank";
  const auto [timeout, outcome] = run_until_late(false, {.silent = 2}, what, [](RankContext& c, Signs&) {
    Stream& s = c.device->compute();
    const Tensor t = make_tensor(*c.device, DType::f32, poison(8));
    c.world->all_reduce(s, t);
    s.synchronize();
  });
  EXPECT_THAT(outcome.texts,
              Each(AllOf(HasSubstr(what), HasSubstr(not_done(timeout)), HasSubstr("check_calls"))));
  EXPECT_EQ(fake_nccl::log().aborted, 3);
  EXPECT_GT(outcome.seconds, 0.8 * std::chrono::duration<double>(timeout).count());
  EXPECT_LT(outcome.seconds, 100);
}

TEST(NcclFailure, ARankThatHasReturnedIsNamedLongBeforeTheTimeout) {
  for (const bool queue : {false, true}) {
    // A call, and a message after one that came; what the rank issued before it left does not matter.
    for (const bool message : {false, true}) {
      const auto devices = queue ? queue_devices(3) : cpu_devices(3);
      const Outcome outcome = run(devices, quick(1h), {}, [&](RankContext& c) {
        Stream& s = c.device->compute();
        const auto group = c.world->split(0, -c.world->rank());
        const Tensor t = make_tensor(*c.device, DType::f32, poison(8));
        c.world->all_reduce(s, t);
        group->barrier(s);
        if (c.world->rank() == 2) c.world->send(s, t, 1);
        if (c.world->rank() == 1) c.world->recv(s, t, 2);
        if (c.world->rank() == 2) return c.world->leave();
        if (message && c.world->rank() == 1) c.world->recv(s, t, 2);
        if (!message) group->all_reduce(s, t);
        s.synchronize();
        if (message) std::this_thread::sleep_for(200ms);
        c.world->leave();
      });
      const std::string what = message ? "recv #2 (f32, 8 elements, 32 bytes) on rank 1 from rank 2"
                                       : "all_reduce #2 (sum, f32, 8 elements, 32 bytes) on rank";
      EXPECT_THAT(outcome.texts[1], AllOf(HasSubstr(what), HasSubstr(": rank 2 has returned from its body")));
      EXPECT_EQ(outcome.texts[2], "");
      EXPECT_LT(outcome.seconds, 100);
    }
  }
}

TEST(NcclFailure, ReturningIsNotAnErrorWithoutWaitingRanks) {
  const Outcome outcome = run(queue_devices(3), quick(1h), {}, [&](RankContext& c) {
    Stream& s = c.device->compute();
    const auto pair = c.world->split(c.world->rank() == 2, 0);
    c.world->barrier(s);
    if (c.world->rank() == 2) return c.world->leave();
    s.synchronize();
    std::this_thread::sleep_for(100ms);
    for (int i = 0; i < 3; ++i) pair->barrier(s);
    s.synchronize();
    c.world->leave();
  });
  EXPECT_THAT(outcome.texts, Each(IsEmpty()));
}

TEST(NcclFailure, RecoverySaysWhyNot) {
  run(cpu_devices(2), quick(1h), {}, [&](RankContext& c) {
    EXPECT_THAT(message_of<NotSupported>([&] { c.world->recover(); }),
                AllOf(HasSubstr("NCCL's communicators are gone"), HasSubstr("last checkpoint")));
  });
}

TEST(NcclFailure, MessagesTimeOutToo) {
  const std::string what = "recv #1 (f32, 8 elements, 32 bytes) on rank 1 from rank 2";
  const Outcome outcome = run_until_late(false, {}, what, [](RankContext& c, Signs&) {
                            Stream& s = c.device->compute();
                            const Tensor t = make_tensor(*c.device, DType::f32, poison(8));
                            if (c.world->rank() == 1) c.world->recv(s, t, 2);
                            if (c.world->rank() == 1) s.synchronize();
                          }).second;
  EXPECT_THAT(outcome.texts[1], HasSubstr(what + ": not done"));
}

TEST(NcclFailure, InitialisationOfOneRankFailsForAll) {
  for (const fake_nccl::Faults& faults : {fake_nccl::Faults{.id_fails = true}, {.init_fails_on = 2}}) {
    fake_nccl::reset(faults);
    const auto devices = cpu_devices(3);
    std::string text;
    try {
      nccl::make_world(fake_nccl::api(), devices, quick(60s));
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
  EXPECT_THAT(message_of<CommError>(
                  [&] { nccl::make_world(fake_nccl::api(), cpu_devices(1)[0], store, 1, 4, quick(300ms)); }),
              HasSubstr("making the world on rank 1 of 4: waited 300 ms for ranks 0, 2, 3,"));
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
class DyingStore final : public StoreInFront {
 public:
  using StoreInFront::StoreInFront;
  std::atomic<bool> dead{false};

 protected:
  StoreReply ask(const StoreRequest& r) override {
    if (dead) throw CommError("the store is gone", 0);
    return StoreInFront::ask(r);
  }
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
    store->barrier("all have read", rank, 3, 30s);
    try {
      // Same as the store when a connection breaks; see store_test.cpp.
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

}  // namespace
}  // namespace sherd::test
