// Every collective against a serial model, for 1 to 8 ranks and all dtypes.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "comm/integer_tensors.h"

namespace sherd::test {
namespace {

class Collectives : public testing::TestWithParam<int> {
 protected:
  static int ranks() { return GetParam(); }
  /// Runs body(rank context, rank, dtype, stream) for every dtype on every rank.
  template <class DTypes, class Body>
  static void each(const DTypes& dtypes, Body body) {
    run_ranks(ranks(), [&](RankContext& c) {
      for (DType dtype : dtypes) {
        SCOPED_TRACE(name_of(dtype));
        body(*c.world, c.world->rank(), dtype, c.device->compute());
      }
    });
  }
  /// Uneven, with zeros: rank r contributes (3r + salt) mod 5 elements.
  static std::vector<int64_t> uneven(int salt) {
    std::vector<int64_t> counts;
    for (int r = 0; r < ranks(); ++r) counts.push_back((3 * r + salt) % 5);
    return counts;
  }
  static int64_t offset(const std::vector<int64_t>& counts, int rank) {
    return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
  }
  static int reduced(ReduceOp op, int64_t i) {
    int result = value_of(0, i);
    for (int r = 1; r < ranks(); ++r) {
      const int v = value_of(r, i);
      result = op == ReduceOp::sum   ? result + v
               : op == ReduceOp::max ? std::max(result, v)
                                     : std::min(result, v);
    }
    return result;
  }
};

constexpr int64_t kSizes[] = {0, 1, 3, 7, 64, 1025, 2500};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::max, ReduceOp::min};

TEST_P(Collectives, AllGather) {
  each(kAllDTypes, [](Communicator& comm, int rank, DType dtype, Stream& s) {
    for (int64_t n : kSizes) {
      Ints expected;
      for (int r = 0; r < ranks(); ++r) append(expected, data_of(r, 0, n));

      const Tensor send = make_tensor(s.device(), dtype, data_of(rank, 0, n));
      const Tensor recv = make_tensor(s.device(), dtype, poison(n * ranks()));
      comm.all_gather(s, recv, send);
      EXPECT_EQ(read_tensor(s, recv), expected);
      EXPECT_EQ(read_tensor(s, send), data_of(rank, 0, n));

      Ints own = poison(n * ranks());
      std::copy(expected.begin() + rank * n, expected.begin() + (rank + 1) * n, own.begin() + rank * n);
      const Tensor both = make_tensor(s.device(), dtype, own);
      comm.all_gather(s, both, both.flat(rank * n, (rank + 1) * n));
      EXPECT_EQ(read_tensor(s, both), expected);
    }
  });
}

TEST_P(Collectives, AllGatherV) {
  each(kAllDTypes, [](Communicator& comm, int rank, DType dtype, Stream& s) {
    for (int salt = 0; salt < 5; ++salt) {
      const auto counts = uneven(salt);
      const int64_t begin = offset(counts, rank), mine = counts[static_cast<size_t>(rank)];
      Ints expected;
      for (int r = 0; r < ranks(); ++r) append(expected, data_of(r, 0, counts[static_cast<size_t>(r)]));

      const Tensor send = make_tensor(s.device(), dtype, data_of(rank, 0, mine));
      const Tensor recv = make_tensor(s.device(), dtype, poison(offset(counts, ranks())));
      comm.all_gather_v(s, recv, counts, send);
      EXPECT_EQ(read_tensor(s, recv), expected);

      Ints own = poison(offset(counts, ranks()));
      std::copy_n(expected.begin() + begin, mine, own.begin() + begin);
      const Tensor both = make_tensor(s.device(), dtype, own);
      comm.all_gather_v(s, both, counts, both.flat(begin, begin + mine));
      EXPECT_EQ(read_tensor(s, both), expected);
    }
  });
}

TEST_P(Collectives, ReduceScatter) {
  each(kReducedDTypes, [](Communicator& comm, int rank, DType dtype, Stream& s) {
    for (ReduceOp op : kOps) {
      for (int64_t n : kSizes) {
        const Ints all = data_of(rank, 0, n * ranks());
        Ints expected;
        for (int64_t i = rank * n; i < (rank + 1) * n; ++i) expected.push_back(reduced(op, i));

        const Tensor send = make_tensor(s.device(), dtype, all);
        const Tensor recv = make_tensor(s.device(), dtype, poison(n));
        comm.reduce_scatter(s, recv, send, op);
        EXPECT_EQ(read_tensor(s, recv), expected);
        EXPECT_EQ(read_tensor(s, send), all);

        comm.reduce_scatter(s, send.flat(rank * n, (rank + 1) * n), send, op);
        Ints in_place = all;
        std::copy(expected.begin(), expected.end(), in_place.begin() + rank * n);
        EXPECT_EQ(read_tensor(s, send), in_place);
      }
    }
  });
}

TEST_P(Collectives, AllReduce) {
  each(kReducedDTypes, [](Communicator& comm, int rank, DType dtype, Stream& s) {
    for (ReduceOp op : kOps) {
      for (int64_t n : kSizes) {
        Ints expected;
        for (int64_t i = 0; i < n; ++i) expected.push_back(reduced(op, i));
        const Tensor t = make_tensor(s.device(), dtype, data_of(rank, 0, n));
        comm.all_reduce(s, t, op);
        EXPECT_EQ(read_tensor(s, t), expected);
      }
    }
  });
}

TEST_P(Collectives, Broadcast) {
  each(kAllDTypes, [](Communicator& comm, int rank, DType dtype, Stream& s) {
    for (int root = 0; root < ranks(); ++root) {
      const int64_t n = 5 * root;  // root 0 sends nothing
      const Tensor t = make_tensor(s.device(), dtype, rank == root ? data_of(root, 0, n) : poison(n));
      comm.broadcast(s, t, root);
      EXPECT_EQ(read_tensor(s, t), data_of(root, 0, n));
    }
  });
}

TEST_P(Collectives, AllToAllV) {
  each(kAllDTypes, [](Communicator& comm, int rank, DType dtype, Stream& s) {
    const auto count = [](int from, int to) -> int64_t { return (from * 2 + to * 3) % 4; };
    std::vector<int64_t> send_counts, recv_counts;
    Ints sent, expected;
    for (int r = 0; r < ranks(); ++r) {
      send_counts.push_back(count(rank, r));
      recv_counts.push_back(count(r, rank));
      append(sent, data_of(rank, 100 * r, count(rank, r)));
      append(expected, data_of(r, 100 * rank, count(r, rank)));
    }
    const Tensor send = make_tensor(s.device(), dtype, sent);
    const Tensor recv = make_tensor(s.device(), dtype, poison(static_cast<int64_t>(expected.size())));
    comm.all_to_all_v(s, recv, recv_counts, send, send_counts);
    EXPECT_EQ(read_tensor(s, recv), expected);
    EXPECT_EQ(read_tensor(s, send), sent);
  });
}

TEST_P(Collectives, GatherVAndScatterV) {
  each(kAllDTypes, [](Communicator& comm, int rank, DType dtype, Stream& s) {
    for (int root = 0; root < ranks(); ++root) {
      const auto counts = uneven(root);
      const int64_t mine = counts[static_cast<size_t>(rank)];
      Ints all;
      for (int r = 0; r < ranks(); ++r) append(all, data_of(r, 0, counts[static_cast<size_t>(r)]));

      const Tensor piece = make_tensor(s.device(), dtype, data_of(rank, 0, mine));
      const Tensor whole =
          rank == root ? make_tensor(s.device(), dtype, poison(static_cast<int64_t>(all.size()))) : Tensor();
      comm.gather_v(s, whole, counts, piece, root);
      if (rank == root) {
        EXPECT_EQ(read_tensor(s, whole), all);
      }

      const Tensor back = make_tensor(s.device(), dtype, poison(mine));
      comm.scatter_v(s, back, counts, whole, root);
      EXPECT_EQ(read_tensor(s, back), data_of(rank, 0, mine));
    }
  });
}

TEST_P(Collectives, BarrierHoldsEverybody) {
  std::atomic<int> before{0};
  run_ranks(ranks(), [&](RankContext& c) {
    Stream& s = c.device->compute();
    for (int round = 1; round <= 20; ++round) {
      s.submit("count", [&](ExecutionContext&) { ++before; });
      c.world->barrier(s);
      s.submit("check",
               [&, round](ExecutionContext&) { EXPECT_GE(before.load(), round * ranks_here(ranks())); });
    }
    s.synchronize();
  });
  EXPECT_EQ(before.load(), 20 * ranks_here(ranks()));
}

TEST_P(Collectives, ManyQueuedWithoutWaiting) {
  run_ranks(ranks(), [](RankContext& c) {
    Stream& s = c.device->compute();
    const Tensor t = make_tensor(*c.device, DType::i64, data_of(0, 0, 37));
    const Tensor slice = make_tensor(*c.device, DType::i64, {c.world->rank()});
    const Tensor all = make_tensor(*c.device, DType::i64, poison(ranks()));
    for (int i = 0; i < 200; ++i) {
      c.world->all_reduce(s, t, ReduceOp::max);
      c.world->all_gather(s, all, slice);
      c.world->reduce_scatter(s, slice, all, ReduceOp::min);
    }
    EXPECT_EQ(read_tensor(s, t), data_of(0, 0, 37));
    Ints numbers(static_cast<size_t>(ranks()));
    std::iota(numbers.begin(), numbers.end(), 0);
    EXPECT_EQ(read_tensor(s, all), numbers);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Range(1, 9));

TEST(Reduction, MaxAndMinKeepNaN) {
  run_ranks(3, [](RankContext& c) {
    Stream& s = c.device->compute();
    for (ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
      const Tensor t = Tensor::empty(*c.device, {3}, DType::f32, "test");
      for (int i = 0; i < 3; ++i) t.data<float>()[i] = i == c.world->rank() ? std::nanf("") : 1.0f;
      c.world->all_reduce(s, t, op);
      s.synchronize();
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(t.data<float>()[i]));
    }
  });
}

}  // namespace
}  // namespace sherd::test
