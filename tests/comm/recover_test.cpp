// After errors that every rank has caught, the launch continues.

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "comm/integer_tensors.h"
#include "comm/on_time.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;

/// Resources of a rank, as in a sharded model: three streams, communicators of two groups.
struct Worker {
  explicit Worker(RankContext& c)
      : world(*c.world),
        compute(c.device->compute()),
        gather(c.device->make_stream("gather")),
        reduce(c.device->make_stream("reduce")),
        gather_comm(c.world->clone()),
        pair(c.world->split(c.world->rank() / 2, 0)),
        mine(make_tensor(*c.device, DType::i32, Ints{c.world->rank(), 1})),
        whole(Tensor::empty(*c.device, {2 * c.world->size()}, DType::i32, "test")),
        sums(Tensor::empty(*c.device, {2 * c.world->size()}, DType::i32, "test")) {}

  /// `fail` is called between the collectives.
  Ints step(const std::function<void()>& fail) {
    gather->wait(compute.record());
    gather_comm->all_gather(*gather, whole, mine);
    compute.wait(gather->record());
    compute.submit("square", [w = whole, s = sums](ExecutionContext&) {
      for (int64_t i = 0; i < w.numel(); ++i)
        s.data<int32_t>()[i] = w.data<int32_t>()[i] * w.data<int32_t>()[i];
    });
    fail();
    reduce->wait(compute.record());
    world.all_reduce(*reduce, sums);
    pair->all_reduce(*reduce, sums.flat(0, 2));
    const int peer = world.rank() ^ 1;
    if (world.rank() % 2 == 0)
      world.send(*reduce, mine, peer);
    else
      world.recv(*reduce, sums.flat(2, 4), peer);
    compute.wait(reduce->record());
    world.barrier(compute);  // all ranks have done this step, or none
    return read_tensor(compute, sums);
  }

  Communicator& world;
  Stream& compute;
  std::unique_ptr<Stream> gather, reduce;
  std::shared_ptr<Communicator> gather_comm, pair;
  Tensor mine, whole, sums;
};

/// Runs steps of 4 ranks; `fail(rank, attempt)` may throw in an attempt of the second.
std::vector<std::vector<Ints>> run_steps(const std::function<void(int, int)>& fail,
                                         int* recoveries = nullptr) {
  std::vector<std::vector<Ints>> results(4);
  std::atomic<int> recovered{0};
  run_ranks(4, [&](RankContext& c) {
    Worker worker(c);
    for (int step = 0; step < 3; ++step) {
      for (int attempt = 0;; ++attempt) {
        try {
          const Ints got = worker.step([&] {
            if (step == 1) fail(c.world->rank(), attempt);
          });
          results[static_cast<size_t>(c.world->rank())].push_back(got);
          break;
        } catch (const Error&) {
          c.world->recover();
          ++recovered;
        }
      }
    }
  });
  if (recoveries) *recoveries = recovered;
  return results;
}

TEST(Recover, ACaughtErrorLeavesARunThatNeverFailed) {
  const auto expected = run_steps([](int, int) {});
  int recoveries = 0;
  EXPECT_EQ(run_steps(
                [](int rank, int attempt) {
                  if (rank == 1 && attempt == 0) throw OutOfMemory("a batch too large");
                },
                &recoveries),
            expected);
  EXPECT_EQ(recoveries, 4);
  // Twice, and on two ranks at once.
  EXPECT_EQ(run_steps(
                [](int rank, int attempt) {
                  if (attempt < 2 && (rank == 3 || rank == attempt)) throw OutOfMemory("again");
                },
                &recoveries),
            expected);
  EXPECT_EQ(recoveries, 8);
}

TEST(Recover, ADisagreementOfCallsIsRecoverableAndCallsAreRenumbered) {
  std::mutex mutex;
  std::vector<std::string> texts, lost;
  run_ranks(3, [&](RankContext& c) {
    Stream& s = c.device->compute();
    const Tensor t = make_tensor(*c.device, DType::i32, Ints{c.world->rank() + 1});
    c.world->serve(Purpose("the test"));
    const auto expect_failure = [&](const std::function<void()>& calls) {
      try {
        calls();
        s.synchronize();
        ADD_FAILURE() << "it worked";
      } catch (const CommError& e) {
        std::lock_guard lock(mutex);
        texts.emplace_back(e.what());
      }
      const auto failures = c.world->recover();
      EXPECT_EQ(c.world->digest(), 0u);
      std::lock_guard lock(mutex);
      lost.insert(lost.end(), failures.begin(), failures.end());
    };
    expect_failure([&] {
      for (int i = 0; i < c.world->rank(); ++i) c.world->barrier(s);
      c.world->all_reduce(s, t);
    });
    c.world->all_reduce(s, t);
    EXPECT_EQ(read_tensor(s, t), Ints{6});
    expect_failure([&] {
      if (c.world->rank() == 1) c.world->barrier(s);
      if (c.world->rank() != 1) c.world->broadcast(s, t, 0);
    });
  });
  EXPECT_THAT(lost, SizeIs(6));
  EXPECT_THAT(lost, Each(AllOf(HasSubstr("stream 'compute': "), HasSubstr("called different collectives"))));
  ASSERT_THAT(texts, SizeIs(6));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_THAT(texts[i], AllOf(HasSubstr("all_reduce #1"), HasSubstr("barrier #1")));
    EXPECT_THAT(texts[3 + i], AllOf(HasSubstr("broadcast #2"), HasSubstr("barrier #2")));
  }
}

TEST(Recover, FailsAtOnceWhenARankHasEnded) {
  for (const bool by_error : {false, true}) {
    std::mutex mutex;
    std::vector<std::string> texts;
    const auto start = std::chrono::steady_clock::now();
    try {
      run_ranks(4, [&](RankContext& c) {
        try {
          if (c.world->rank() == 3) {
            std::this_thread::sleep_for(30ms);
            if (by_error) throw std::logic_error("not caught");
            return;
          }
          c.world->barrier(c.device->compute());
          if (c.world->rank() == 0) throw OutOfMemory("too large");
          c.device->compute().synchronize();
        } catch (const Error&) {
          try {
            c.world->recover();
          } catch (const CommError& e) {
            std::lock_guard lock(mutex);
            texts.emplace_back(e.what());
          }
        }
      });
    } catch (const std::exception& e) {
      EXPECT_STREQ(e.what(), by_error ? "not caught" : "");
    }
    EXPECT_THAT(texts, SizeIs(3));
    EXPECT_THAT(texts,
                Each(AllOf(HasSubstr("recover() on rank"), HasSubstr("rank 3 has ended and will not call it"),
                           HasSubstr("resume from the last checkpoint"))));
    EXPECT_LT(std::chrono::steady_clock::now() - start, kLongEnough);
  }
}

TEST(Recover, NamesWhoDoesNotComeInTimeAndStaysImpossible) {
  using Texts = std::vector<std::string>;
  const auto recover_without_rank_2 = [](std::chrono::milliseconds timeout) {
    Signs signs;
    std::mutex mutex;
    Texts texts;
    run_ranks(3, [&](RankContext& c) {
      if (c.world->rank() == 2) signs.await_failures({0, 1});
      for (int attempt = 0; attempt < 2; ++attempt) {
        std::string text = "it worked";
        try {
          c.world->recover(timeout);
        } catch (const CommError& e) {
          text = e.what();
        }
        std::lock_guard lock(mutex);
        texts.push_back(text);
      }
      signs.has_failed(c.world->rank());
      c.world->barrier(c.device->compute());
      EXPECT_THROW(c.device->compute().synchronize(), CommError);
      c.device->streams().reset();  // the launch checks it, too
    });
    return texts;
  };
  const auto [timeout, texts] = with_timeout(recover_without_rank_2, [](const Texts& told) {
    return testing::Value(told, Each(HasSubstr("for rank 2,")));
  });
  EXPECT_THAT(texts, SizeIs(6));
  EXPECT_THAT(texts, Each(HasSubstr("waited " + std::to_string(timeout.count()) +
                                    " ms for rank 2, which did not call it")));
}

TEST(Recover, ADeviceThatFailedItselfCannotAndAllReceiveThat) {
  std::mutex mutex;
  std::vector<std::string> texts;
  run_ranks(2, [&](RankContext& c) {
    Stream& s = c.device->compute();
    if (c.world->rank() == 1)
      s.submit("kernel", [](ExecutionContext&) { throw CudaError("an illegal memory access"); });
    try {
      c.world->barrier(s);
      s.synchronize();
    } catch (const Error&) {
    }
    try {
      c.world->recover();
    } catch (const NotSupported& e) {
      std::lock_guard lock(mutex);
      texts.emplace_back(e.what());
    }
  });
  EXPECT_THAT(texts, SizeIs(2));
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("rank 1, stream 'compute': an illegal memory access"),
                                HasSubstr("undefined after that"))));
}

TEST(Recover, EventsOfBeforeKeepTheirFailure) {
  run_ranks(2, [&](RankContext& c) {
    Stream& s = c.device->compute();
    std::atomic<bool> recorded{false};
    s.submit("bad", [&](ExecutionContext&) {
      while (!recorded) std::this_thread::yield();
      throw OutOfMemory("in a kernel");
    });
    const Event before = s.record();
    recorded = true;
    EXPECT_THROW(before.synchronize(), OutOfMemory);
    c.world->recover();
    EXPECT_THROW(before.synchronize(), OutOfMemory);
    c.world->barrier(s);
    s.synchronize();
  });
}

}  // namespace
}  // namespace sherd::test
