// Groups made from groups, and several communicators at work at once.
#include "comm/integer_tensors.h"

namespace sherd::test {
namespace {

/// The world ranks of a group, as the group itself reports them.
Ints members(Communicator& comm, Stream& s) {
  const Tensor mine = make_tensor(s.device(), DType::i32, {comm.world_rank()});
  const Tensor all = make_tensor(s.device(), DType::i32, poison(comm.size()));
  comm.all_gather(s, all, mine);
  return read_tensor(s, all);
}

TEST(Split, RowsAndColumnsOfAMesh) {
  run_ranks(6, [](RankContext& c) {
    Stream& s = c.device->compute();
    const int rank = c.world->rank(), row = rank / 3, column = rank % 3;
    const auto in_row = c.world->split(row, column);
    const auto in_column = c.world->split(column, row);
    EXPECT_EQ(in_row->rank(), column);
    EXPECT_EQ(in_row->size(), 3);
    EXPECT_EQ(in_row->world_rank(), rank);
    EXPECT_EQ(&in_row->device(), c.device.get());
    EXPECT_EQ(members(*in_row, s), (Ints{3 * row, 3 * row + 1, 3 * row + 2}));
    EXPECT_EQ(members(*in_column, s), (Ints{column, column + 3}));
    const auto alone = in_row->split(in_row->rank(), 0);
    EXPECT_EQ(members(*alone, s), Ints{rank});
  });
}

TEST(Split, OrdersByKeyThenRank) {
  run_ranks(5, [](RankContext& c) {
    Stream& s = c.device->compute();
    const auto reversed = c.world->split(0, -c.world->rank());
    EXPECT_EQ(members(*reversed, s), (Ints{4, 3, 2, 1, 0}));
    const auto equal = reversed->split(7, 1);  // ranks of the parent break the tie
    EXPECT_EQ(members(*equal, s), (Ints{4, 3, 2, 1, 0}));
  });
}

TEST(Split, RunsBesideCollectivesQueuedOnTheParent) {
  run_ranks(4, [](RankContext& c) {
    Stream& s = c.device->compute();
    const Tensor t = make_tensor(*c.device, DType::i64, {1});
    for (int i = 0; i < 20; ++i) {
      c.world->all_reduce(s, t, ReduceOp::max);
      EXPECT_EQ(c.world->clone()->size(), 4);
    }
    EXPECT_EQ(read_tensor(s, t), Ints{1});
  });
}

TEST(Split, NegativeColorIsRefused) {
  run_ranks(2, [](RankContext& c) { EXPECT_THROW(c.world->split(-1, 0), InvalidArgument); });
}

TEST(Overlap, TwoCommunicatorsOnTwoStreamsNeverBlockEachOther) {
  run_ranks(4, [](RankContext& c) {
    Stream& compute = c.device->compute();
    const auto other = c.device->make_stream("other");
    const auto clone = c.world->clone();
    const Tensor sum = make_tensor(*c.device, DType::i64, {1});
    const Tensor all = make_tensor(*c.device, DType::i32, poison(4));
    const Tensor own = all.flat(c.world->rank(), c.world->rank() + 1);
    own.data<int32_t>()[0] = c.world->rank();
    // Ranks queue the two kinds in opposite orders: legal, as each communicator sees one order.
    const bool flip = c.world->rank() % 2;
    for (int pass = 0; pass < 2; ++pass) {
      for (int i = 0; i < 100; ++i) {
        if ((pass == 0) == flip)
          c.world->all_reduce(compute, sum, ReduceOp::max);
        else
          clone->all_gather(*other, all, own);
      }
    }
    EXPECT_EQ(read_tensor(*other, all), (Ints{0, 1, 2, 3}));
    EXPECT_EQ(read_tensor(compute, sum), Ints{1});
  });
}

TEST(Overlap, EventsOrderCollectivesAcrossStreams) {
  run_ranks(3, [](RankContext& c) {
    Stream& compute = c.device->compute();
    const auto comm_stream = c.device->make_stream("communication");
    const auto clone = c.world->clone();
    const Tensor t = make_tensor(*c.device, DType::i64, {c.world->rank() == 0 ? 1 : 0});
    for (int i = 0; i < 10; ++i) {  // t: 1 on rank 0, else 0 -> 1 everywhere -> 1 on rank 0, else 0 ...
      comm_stream->wait(compute.record());
      clone->all_reduce(*comm_stream, t);
      compute.wait(comm_stream->record());
      compute.submit("keep on rank 0", [t, rank = c.world->rank()](ExecutionContext&) {
        EXPECT_EQ(t.data<int64_t>()[0], 1);
        if (rank != 0) t.data<int64_t>()[0] = 0;
      });
    }
    compute.synchronize();
  });
}

TEST(Lifetime, ACommunicatorMayGoBeforeItsQueuedWork) {
  run_ranks(3, [](RankContext& c) {
    Stream& s = c.device->compute();
    const Tensor sum = make_tensor(*c.device, DType::i32, {c.world->rank()});
    {
      const auto clone = c.world->clone();
      Tensor temporary = make_tensor(*c.device, DType::i32, {1});
      clone->all_reduce(s, temporary);
      clone->all_reduce(s, sum);
    }
    EXPECT_EQ(read_tensor(s, sum), Ints{3});
  });
}

TEST(Lifetime, QueuedTensorsAreReleasedOnceTheCollectiveHasRun) {
  run_ranks(2, [](RankContext& c) {
    Stream& s = c.device->compute();
    c.world->all_reduce(s, make_tensor(*c.device, DType::i32, {1, 2}));
    s.synchronize();
    EXPECT_EQ(c.device->allocator().live_bytes("test"), 0);
  });
}

}  // namespace
}  // namespace sherd::test
