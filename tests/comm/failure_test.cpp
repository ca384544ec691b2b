// Failures end every rank: mismatches, timeouts and failing ranks, with the first cause.

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include <sherd/comm/abort_on_error.h>
#include <sherd/comm/watch/abort_domain.h>

#include "comm/integer_tensors.h"
#include "comm/on_time.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;

struct Boom : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class E>
const char* kind_of();
template <>
const char* kind_of<Boom>() {
  return "Boom ";
}
template <>
const char* kind_of<CommError>() {
  return "CommError ";
}
constexpr const char* kOfAPeer = "PeerFailure ";

/// Returns the error with its kind before it, so that processes can exchange it.
std::string as_text(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Boom& e) {
    return std::string(kind_of<Boom>()) + e.what();
  } catch (const comm::PeerFailure& e) {
    return std::string(kOfAPeer) + e.what();
  } catch (const CommError& e) {
    return std::string(kind_of<CommError>()) + e.what();
  } catch (const std::exception& e) {
    return std::string("another type: ") + e.what();
  }
}

/// The errors of the ranks that ended in a CommError, and what run_ranks() threw: of several processes, each
/// of which throws its own, the first that does not only report a peer's.
struct Ending {
  std::vector<std::string> texts;
  std::vector<int> failed_ranks;
  std::vector<std::string> thrown;
  double seconds = 0;

  template <class E>
  std::string thrown_as() const {
    if (thrown.empty()) return "nothing was thrown";
    const auto is_cause = [](const std::string& t) { return !t.starts_with(kOfAPeer); };
    const auto found = std::find_if(thrown.begin(), thrown.end(), is_cause);
    const std::string& first = found == thrown.end() ? thrown.front() : *found;
    return first.starts_with(kind_of<E>()) ? first.substr(std::string(kind_of<E>()).size()) : first;
  }
};

/// Each rank that ends in a CommError gives its sign of that, where there are `signs`.
Ending run_to_end(int ranks, const LaunchOptions& options, const std::function<void(RankContext&)>& body,
                  Signs* signs = nullptr) {
  Ending outcome;
  std::mutex mutex;
  const auto start = std::chrono::steady_clock::now();
  try {
    run_ranks(ranks, options, [&](RankContext& c) {
      try {
        body(c);
        c.device->compute().synchronize();
      } catch (const CommError& e) {
        if (signs) signs->has_failed(c.world->rank());
        std::lock_guard lock(mutex);
        outcome.texts.emplace_back(e.what());
        outcome.failed_ranks.push_back(e.failed_rank());
        throw;
      }
    });
  } catch (...) {
    outcome.thrown.push_back(as_text(std::current_exception()));
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  outcome.texts = from_all_processes(outcome.texts);
  outcome.thrown = from_all_processes(outcome.thrown);
  std::vector<std::string> failed;
  for (const int rank : outcome.failed_ranks) failed.push_back(std::to_string(rank));
  outcome.failed_ranks.clear();
  for (const std::string& rank : from_all_processes(failed)) outcome.failed_ranks.push_back(std::stoi(rank));
  return outcome;
}
Ending run_to_end(int ranks, const std::function<void(RankContext&)>& body) {
  return run_to_end(ranks, {}, body);
}

/// Far below the timeout of 300 s that options have by themselves, and far above what any machine takes.
constexpr double kLongBeforeTheTimeout = 100;

/// Rank 2 of 4 calls `odd`, the others `even`, after two collectives that fit.
template <class F, class G>
void expect_mismatch(const std::string& even_text, const std::string& odd_text, F even, G odd) {
  SCOPED_TRACE(odd_text);
  const Ending outcome = run_to_end(4, [&](RankContext& c) {
    Stream& s = c.device->compute();
    c.world->barrier(s);
    c.world->barrier(s);
    const auto f = [&](int64_t n) { return make_tensor(*c.device, DType::f32, poison(n)); };
    if (c.world->rank() == 2)
      odd(*c.world, s, f);
    else
      even(*c.world, s, f);
  });
  EXPECT_THAT(outcome.texts, SizeIs(4));
  EXPECT_THAT(outcome.texts,
              Each(AllOf(HasSubstr("rank 0 called " + even_text), HasSubstr("rank 2 called " + odd_text))));
  EXPECT_THAT(outcome.thrown_as<CommError>(), Not(HasSubstr("aborted because")));
  EXPECT_LT(outcome.seconds, kLongBeforeTheTimeout);
}

TEST(Mismatch, IsACommErrorOnEveryRankThatNamesBothCalls) {
  using C = Communicator;
  const auto sum = [](C& c, Stream& s, auto f) { c.all_reduce(s, f(8)); };
  expect_mismatch("all_reduce #3 (sum, f32, 8 elements, 32 bytes)", "barrier #3", sum,
                  [](C& c, Stream& s, auto) { c.barrier(s); });
  expect_mismatch("all_reduce #3", "all_reduce #3 (sum, f32, 9 elements, 36 bytes)", sum,
                  [](C& c, Stream& s, auto f) { c.all_reduce(s, f(9)); });
  expect_mismatch("all_reduce #3", "all_reduce #3 (max,", sum,
                  [](C& c, Stream& s, auto f) { c.all_reduce(s, f(8), ReduceOp::max); });
  expect_mismatch("all_reduce #3", "all_reduce #3 (sum, i32, 8 elements", sum, [](C& c, Stream& s, auto) {
    c.all_reduce(s, make_tensor(c.device(), DType::i32, poison(8)));
  });
  expect_mismatch(
      "broadcast #3 (f32, 4 elements, 16 bytes, root 1)", "broadcast #3 (f32, 4 elements, 16 bytes, root 0)",
      [](C& c, Stream& s, auto f) { c.broadcast(s, f(4), 1); },
      [](C& c, Stream& s, auto f) { c.broadcast(s, f(4), 0); });
  const std::vector<int64_t> counts{1, 2, 3, 4}, others{4, 2, 3, 1};
  expect_mismatch(
      "all_gather_v #3 (f32, 10 elements, 40 bytes, counts [1, 2, 3, 4])",
      "all_gather_v #3 (f32, 10 elements, 40 bytes, counts [4, 2, 3, 1])",
      [&](C& c, Stream& s, auto f) {
        c.all_gather_v(s, f(10), counts, f(counts[static_cast<size_t>(c.rank())]));
      },
      [&](C& c, Stream& s, auto f) { c.all_gather_v(s, f(10), others, f(3)); });
}

TEST(Mismatch, AllToAllCountsMustAgreeCrosswise) {
  const Ending outcome = run_to_end(3, [](RankContext& c) {
    const std::vector<int64_t> ones{1, 1, 1}, wrong{1, 0, 1};
    const bool odd = c.world->rank() == 2;
    c.world->all_to_all_v(c.device->compute(), make_tensor(*c.device, DType::f32, poison(3)), ones,
                          make_tensor(*c.device, DType::f32, poison(odd ? 2 : 3)), odd ? wrong : ones);
  });
  EXPECT_THAT(outcome.texts, SizeIs(3));
  EXPECT_THAT(outcome.texts, Each(HasSubstr("rank 2 sends 0 elements to rank 1, which expects 1")));
}

TEST(Mismatch, SendAndReceiveOfDifferentSizes) {
  const Ending outcome = run_to_end(2, [](RankContext& c) {
    const int rank = c.world->rank();
    const Tensor t = make_tensor(*c.device, DType::f32, poison(3 + rank));
    if (rank == 0)
      c.world->send(c.device->compute(), t, 1);
    else
      c.world->recv(c.device->compute(), t, 0);
  });
  EXPECT_THAT(outcome.texts, SizeIs(2));
  EXPECT_THAT(outcome.texts,
              Each(AllOf(HasSubstr("recv #1 (f32, 4 elements"), HasSubstr("send #1 (f32, 3 elements"))));
}

/// Checks that all ranks made the world within the same timeout, and that all errors are of this call.
template <class Matcher>
bool in_time(const Ending& outcome, const Matcher& is_of_the_call) {
  return !(outcome.texts.empty() && !outcome.thrown.empty()) &&
         testing::Value(outcome.texts, Each(is_of_the_call));
}

TEST(Timeout, NamesTheCollectiveAndTheRanksThatDidNotCall) {
  const auto [timeout, outcome] = with_timeout(
      [](std::chrono::milliseconds given) {
        Signs signs;
        const auto body = [&](RankContext& c) {
          Stream& s = c.device->compute();
          c.world->barrier(s);
          if (c.world->rank() == 1 || c.world->rank() == 3) return signs.await_failures({0, 2});
          c.world->all_reduce(s, make_tensor(*c.device, DType::f32, poison(16)));
          s.synchronize();
        };
        return run_to_end(4, timeout_of(given), body, &signs);
      },
      [](const Ending& o) {
        return in_time(o, AllOf(HasSubstr("all_reduce #2"), HasSubstr("for ranks 1, 3,")));
      });
  const std::string waited = "waited " + std::to_string(timeout.count()) + " ms";
  EXPECT_THAT(outcome.texts, SizeIs(2));
  EXPECT_THAT(outcome.texts, Each(AllOf(HasSubstr("all_reduce #2"), HasSubstr("64 bytes"),
                                        HasSubstr(waited + " for ranks 1, 3,"))));
  EXPECT_THAT(outcome.failed_ranks, Each(1));
  EXPECT_THAT(outcome.thrown_as<CommError>(), HasSubstr(waited));
  EXPECT_GT(outcome.seconds, 0.8 * std::chrono::duration<double>(timeout).count());
  EXPECT_LT(outcome.seconds, kLongBeforeTheTimeout);
}

/// Splits three ranks into a group of odd and one of even ranks. Then `rank` alone calls something, while the
/// others stay. `what` is the call's name in messages.
Ending call_alone(int rank, const std::string& what,
                  const std::function<void(RankContext&, Communicator& group, const Tensor&)>& call) {
  return with_timeout(
             [&](std::chrono::milliseconds given) {
               Signs signs;
               const auto body = [&](RankContext& c) {
                 const auto group = c.world->split(c.world->rank() == 1, 0);
                 if (c.world->rank() != rank) return signs.await_failures({rank});
                 call(c, *group, make_tensor(*c.device, DType::f32, poison(2)));
                 c.device->compute().synchronize();
               };
               return run_to_end(3, timeout_of(given), body, &signs);
             },
             // Else a rank was late for the first split.
             [&](const Ending& o) { return in_time(o, HasSubstr(what)); })
      .second;
}

TEST(Timeout, CoversGroupsSendReceiveAndSplit) {
  const Ending send = call_alone(0, "send #1", [](RankContext& c, Communicator&, const Tensor& t) {
    c.world->send(c.device->compute(), t, 2);
  });
  EXPECT_THAT(send.thrown_as<CommError>(), AllOf(HasSubstr("send #1"), HasSubstr("for rank 2,")));
  EXPECT_THAT(send.failed_ranks, testing::ElementsAre(2));
  const Ending recv = call_alone(2, "recv #1", [](RankContext& c, Communicator&, const Tensor& t) {
    c.world->recv(c.device->compute(), t, 1);
  });
  EXPECT_THAT(recv.thrown_as<CommError>(), AllOf(HasSubstr("recv #1"), HasSubstr("for rank 1,")));
  const Ending split = call_alone(1, "split(color 0, key 5)",
                                  [](RankContext& c, Communicator&, const Tensor&) { c.world->split(0, 5); });
  EXPECT_THAT(split.thrown_as<CommError>(),
              AllOf(HasSubstr("split(color 0, key 5)"), HasSubstr("ranks 0, 2,")));
  const Ending group = call_alone(0, "barrier #1", [](RankContext& c, Communicator& pair, const Tensor&) {
    pair.barrier(c.device->compute());
  });
  EXPECT_THAT(group.thrown_as<CommError>(),
              AllOf(HasSubstr("barrier #1"), HasSubstr("for rank 2,")));  // world rank
}

TEST(Returned, ARankThatIsGoneIsNamedAtOnceToThoseThatWaitOrBeginTo) {
  for (const bool early : {true, false}) {
    const Ending outcome = run_to_end(4, [&](RankContext& c) {
      Stream& s = c.device->compute();
      c.world->barrier(s);
      if (c.world->rank() == 2) {
        if (!early) std::this_thread::sleep_for(50ms);
        return;
      }
      if (early) std::this_thread::sleep_for(50ms);
      const Serving serving(*c.world, Purpose("the gradients of unit 'blocks.1'"));
      c.world->all_reduce(s, make_tensor(*c.device, DType::f32, poison(16)));
    });
    EXPECT_THAT(outcome.texts, SizeIs(3));
    EXPECT_THAT(
        outcome.texts,
        Each(AllOf(HasSubstr("all_reduce #2 (sum, f32, 16 elements, 64 bytes) for the gradients of unit "
                             "'blocks.1' on rank"),
                   HasSubstr(": rank 2 has returned from its body and will not call it"))));
    EXPECT_THAT(outcome.failed_ranks, Each(2));
    EXPECT_LT(outcome.seconds, kLongBeforeTheTimeout);
  }
}

TEST(Returned, MattersToMessagesSplitsAndOtherGroupsAlike) {
  const auto waits = [](int rank,
                        const std::function<void(RankContext&, Communicator&, const Tensor&)>& call) {
    return run_to_end(3, [&](RankContext& c) {
      const auto pair = c.world->split(c.world->rank() == 1, 0);
      const auto beside = c.world->side_channel(1h);
      if (c.world->rank() == rank)
        call(c, rank == 1 ? *beside : *pair, make_tensor(*c.device, DType::f32, poison(2)));
      if (c.world->rank() != rank && rank != 1) std::this_thread::sleep_for(30ms);
    });
  };
  const auto said = [](const Ending& o) { return o.thrown_as<CommError>(); };
  EXPECT_THAT(said(waits(0, [](RankContext& c, Communicator& pair,
                               const Tensor& t) { pair.send(c.device->compute(), t, 1); })),
              AllOf(HasSubstr("send #1"), HasSubstr("to rank 2: rank 2 has returned")));
  EXPECT_THAT(said(waits(2, [](RankContext& c, Communicator& pair,
                               const Tensor& t) { pair.recv(c.device->compute(), t, 0); })),
              AllOf(HasSubstr("recv #1"), HasSubstr("from rank 0: rank 0 has returned")));
  EXPECT_THAT(said(waits(0, [](RankContext&, Communicator& pair, const Tensor&) { pair.clone(); })),
              AllOf(HasSubstr("split(color 0, key 0)"), HasSubstr("rank 2 has returned")));
  EXPECT_THAT(said(waits(1, [](RankContext& c, Communicator& beside,
                               const Tensor&) { beside.barrier(c.device->compute()); })),
              AllOf(HasSubstr("barrier #1"), HasSubstr("returned from")));
}

TEST(Returned, IsNotAnErrorWithoutWaitingRanksAndQueuedWorkOfAnyStreamStillRuns) {
  std::vector<std::shared_ptr<Device>> devices(3);
  std::vector<std::unique_ptr<Stream>> streams(3);  // outlive the bodies
  std::vector<Ints> sums(3);
  const Ending outcome = run_to_end(3, [&](RankContext& c) {
    const auto rank = static_cast<size_t>(c.world->rank());
    devices[rank] = c.device;
    streams[rank] = c.device->make_stream("other");
    const auto pair = c.world->split(c.world->rank() == 2, 0);
    const Tensor t = make_tensor(*c.device, DType::i32, Ints{1 + c.world->rank()});
    if (rank == 1)
      streams[rank]->submit("slow", [](ExecutionContext&) { std::this_thread::sleep_for(100ms); });
    c.world->all_reduce(*streams[rank], t);
    if (rank == 1) return;  // while its own call has not begun
    if (rank == 0) sums[rank] = read_tensor(*streams[rank], t);
    if (rank == 2) pair->barrier(c.device->compute());  // a group without the one that is gone
  });
  EXPECT_THAT(outcome.thrown, testing::IsEmpty());
  if (is_here(0, 3)) {
    EXPECT_EQ(sums[0], Ints{6});
  }
}

TEST(Returned, AFailureOfWhatIsQueuedWinsOverTheReturn) {
  const Ending outcome = run_to_end(2, [](RankContext& c) {
    Stream& s = c.device->compute();
    if (c.world->rank() == 1)
      s.submit("bad work", [](ExecutionContext&) {
        std::this_thread::sleep_for(30ms);
        throw Boom("on the stream");
      });
    c.world->barrier(s);
  });
  EXPECT_EQ(outcome.thrown_as<Boom>(), "on the stream");
  EXPECT_THAT(outcome.texts, Each(HasSubstr("rank 1 failed: on the stream")));
}

TEST(Mismatch, NamesWhatTheCallsServe) {
  const Ending outcome = run_to_end(2, [](RankContext& c) {
    const std::string unit = c.world->rank() == 0 ? "blocks.0" : "blocks.1";
    const Serving serving(*c.world, Purpose("the weights of unit '" + unit + "'"));
    c.world->all_reduce(c.device->compute(), make_tensor(*c.device, DType::f32, poison(4)));
  });
  EXPECT_THAT(outcome.texts, SizeIs(2));
  EXPECT_THAT(
      outcome.texts,
      Each(AllOf(
          HasSubstr("rank 0 called all_reduce #1 (sum, f32, 4 elements, 16 bytes) for the weights of unit "
                    "'blocks.0', rank 1 called"),
          HasSubstr("for the weights of unit 'blocks.1'; every rank calls"))));
  const Ending messages = run_to_end(2, [](RankContext& c) {
    const int rank = c.world->rank();
    c.world->serve(Purpose(rank == 0 ? "this" : "that"));
    const Tensor t = make_tensor(*c.device, DType::f32, poison(3));
    if (rank == 0)
      c.world->send(c.device->compute(), t, 1);
    else
      c.world->recv(c.device->compute(), t, 0);
  });
  EXPECT_THAT(messages.texts, Each(AllOf(HasSubstr("for this"), HasSubstr("for that"))));
}

TEST(Abort, WakesRanksWaitingAnywhereAndKeepsTheCausesType) {
  const Ending outcome = run_to_end(7, [](RankContext& c) {
    Stream& s = c.device->compute();
    const int rank = c.world->rank();
    const auto group = c.world->split(rank == 3 || rank == 0, 0);
    const Tensor t = make_tensor(*c.device, DType::f32, poison(4));
    switch (rank) {
      case 0:
        std::this_thread::sleep_for(50ms);
        throw Boom("boom");
      case 1:
        return c.world->send(s, t, 0);
      case 2:
        return c.world->recv(s, t, 0);
      case 3:
        return group->barrier(s);
      case 4:
        group->split(0, 0);
        return;
      default:
        return c.world->all_reduce(s, t);
    }
  });
  EXPECT_THAT(outcome.texts, SizeIs(6));
  EXPECT_THAT(outcome.texts, Each(HasSubstr("aborted because rank 0 failed: boom")));
  EXPECT_THAT(outcome.failed_ranks, Each(0));
  EXPECT_EQ(outcome.thrown_as<Boom>(), "boom");
  EXPECT_LT(outcome.seconds, kLongBeforeTheTimeout);
}

/// Same as ShardRuntime and CheckpointSaver when an exception destroys them.
struct AbortsWhenItGoes {
  ~AbortsWhenItGoes() { world.abort("something fails here"); }
  Communicator& world;
};

TEST(AbortOnError, TheOthersReceiveTheCauseBeforeItIsTornDown) {
  for (const bool told : {false, true}) {
    const Ending outcome = run_to_end(3, [&](RankContext& c) {
      const auto fails = [&]() -> int {
        std::this_thread::sleep_for(50ms);
        throw Boom("boom");
      };
      if (c.world->rank() != 1) return c.world->barrier(c.device->compute());
      const AbortsWhenItGoes runtime{*c.world};
      if (told)
        abort_on_error(*c.world, fails);
      else
        fails();
    });
    EXPECT_THAT(outcome.texts, SizeIs(2));
    EXPECT_THAT(outcome.texts,
                Each(HasSubstr(told ? "rank 1 failed: boom" : "rank 1 failed: something fails here")));
    EXPECT_EQ(outcome.thrown_as<Boom>(), "boom");
  }
}

TEST(AbortOnError, ReturnsWhatTheWorkDoes) {
  EXPECT_THAT(run_to_end(2,
                         [](RankContext& c) {
                           int value = 3;
                           int& same = abort_on_error(*c.world, [&]() -> int& { return value; });
                           same = 4;
                           if (value != 4) throw Boom("a copy");
                           abort_on_error(*c.world, [] {});
                           c.world->barrier(c.device->compute());
                         })
                  .thrown,
              testing::IsEmpty());
}

TEST(Abort, FailsLaterCollectivesAndSplitsToo) {
  const Ending outcome = run_to_end(2, [](RankContext& c) {
    c.world->abort("enough");
    c.world->abort("not this");
    EXPECT_THROW(c.world->clone(), CommError);
    c.world->barrier(c.device->compute());
  });
  EXPECT_THAT(outcome.texts, SizeIs(2));
  EXPECT_THAT(outcome.texts, Each(HasSubstr("failed: enough")));
  EXPECT_THAT(outcome.thrown_as<CommError>(), HasSubstr("failed: enough"));
}

TEST(Abort, WorkThatFailsOnAStreamIsTheCause) {
  const Ending outcome = run_to_end(4, [](RankContext& c) {
    Stream& s = c.device->compute();
    if (c.world->rank() == 1) s.submit("bad work", [](ExecutionContext&) { throw Boom("on the stream"); });
    c.world->all_reduce(s, make_tensor(*c.device, DType::f32, poison(5)));
  });
  EXPECT_EQ(outcome.thrown_as<Boom>(), "on the stream");
  EXPECT_THAT(outcome.texts, SizeIs(3));
  EXPECT_THAT(outcome.texts, Each(HasSubstr("rank 1 failed: on the stream")));
}

TEST(Abort, MidwayThroughTrainingLikeTrafficLeavesNoRankBehind) {
  for (int round = 0; round < 20; ++round) {
    const Ending outcome = run_to_end(4, [round](RankContext& c) {
      Stream& compute = c.device->compute();
      const auto other = c.device->make_stream("other");
      const auto clone = c.world->clone();
      for (int i = 0; i < 30; ++i) {
        const Tensor whole = make_tensor(*c.device, DType::f32, poison(4000));
        const int64_t r = c.world->rank();
        clone->all_gather(*other, whole, whole.flat(1000 * r, 1000 * (r + 1)));
        compute.wait(other->record());
        c.world->reduce_scatter(compute, whole.flat(1000 * r, 1000 * (r + 1)), whole);
        if (r == round % 4 && i == round) throw Boom("midway");
        if (i % 4 == 0) compute.synchronize();
      }
    });
    EXPECT_EQ(outcome.thrown_as<Boom>(), "midway");
    EXPECT_THAT(outcome.texts, Each(HasSubstr("midway")));
    EXPECT_LT(outcome.seconds, kLongBeforeTheTimeout);
  }
}

}  // namespace
}  // namespace sherd::test
