#include "comm/integer_tensors.h"

namespace sherd::test {
namespace {

void expect_count(Communicator& comm, const char* op, int64_t calls, int64_t bytes) {
  SCOPED_TRACE(op);
  const CommCounts counts = comm.counts();
  const auto it = counts.find(op);
  ASSERT_NE(it, counts.end());
  EXPECT_EQ(it->second.calls, calls);
  EXPECT_EQ(it->second.bytes, bytes);
}

TEST(Counters, EveryOperationCountsCallsAndReceivedBytes) {
  run_ranks(3, [](RankContext& c) {
    Communicator& comm = *c.world;
    Stream& s = c.device->compute();
    const int rank = comm.rank();
    const auto f32 = [&](int64_t n) { return make_tensor(*c.device, DType::f32, poison(n)); };
    const auto bf = [&](int64_t n) { return make_tensor(*c.device, DType::bf16, poison(n)); };
    EXPECT_TRUE(comm.counts().empty());

    comm.all_gather(s, f32(12), f32(4));
    comm.all_gather(s, bf(12), bf(4));
    expect_count(comm, "all_gather", 2, 2 * 4 * 4 + 2 * 4 * 2);
    comm.reduce_scatter(s, f32(5), f32(15));
    expect_count(comm, "reduce_scatter", 1, 2 * 5 * 4);
    comm.all_reduce(s, f32(4));  // 2 * 2/3 * 4 = 5.33 elements, rounded up
    expect_count(comm, "all_reduce", 1, 6 * 4);
    comm.broadcast(s, f32(7), 1);
    expect_count(comm, "broadcast", 1, rank == 1 ? 0 : 28);
    comm.barrier(s);
    expect_count(comm, "barrier", 1, 0);

    const std::vector<int64_t> counts{2, 0, 3};
    const int64_t mine = counts[static_cast<size_t>(rank)];
    comm.all_gather_v(s, f32(5), counts, f32(mine));
    expect_count(comm, "all_gather_v", 1, (5 - mine) * 4);
    comm.gather_v(s, f32(5), counts, f32(mine), 2);
    expect_count(comm, "gather_v", 1, rank == 2 ? 2 * 4 : 0);
    comm.scatter_v(s, f32(mine), counts, f32(5), 2);
    expect_count(comm, "scatter_v", 1, rank == 2 ? 0 : mine * 4);
    const std::vector<int64_t> ones{1, 1, 1};
    comm.all_to_all_v(s, f32(3), ones, f32(3), ones);
    expect_count(comm, "all_to_all_v", 1, 8);
    if (rank == 0) {
      comm.send(s, f32(9), 1);
      expect_count(comm, "send", 1, 0);
    } else if (rank == 1) {
      comm.recv(s, f32(9), 0);
      expect_count(comm, "recv", 1, 36);
    }
    s.synchronize();
  });
}

TEST(Counters, OneRankMovesNothing) {
  run_ranks(1, [](RankContext& c) {
    Stream& s = c.device->compute();
    const Tensor t = make_tensor(*c.device, DType::f32, poison(6));
    const std::vector<int64_t> six{6};
    c.world->all_gather(s, t, t);
    c.world->reduce_scatter(s, t, t);
    c.world->all_reduce(s, t);
    const Tensor other = make_tensor(*c.device, DType::f32, poison(6));
    c.world->all_to_all_v(s, other, six, t, six);
    for (const char* op : {"all_gather", "reduce_scatter", "all_reduce", "all_to_all_v"})
      expect_count(*c.world, op, 1, 0);
    EXPECT_EQ(read_tensor(s, t), poison(6));
  });
}

TEST(Counters, AreSharedWithCommunicatorsSplitFromTheWorldAndNotBetweenRanks) {
  run_ranks(4, [](RankContext& c) {
    Stream& s = c.device->compute();
    const auto pair = c.world->split(c.world->rank() / 2, 0);
    const auto clone = pair->clone();
    if (pair->world_rank() >= 2) clone->barrier(s);
    pair->all_reduce(s, make_tensor(*c.device, DType::f32, poison(8)));
    c.world->all_reduce(s, make_tensor(*c.device, DType::f32, poison(8)));
    for (Communicator* comm : {c.world.get(), pair.get(), clone.get()}) {
      expect_count(*comm, "all_reduce", 2, 8 * 4 + 12 * 4);
      EXPECT_EQ(comm->counts().count("barrier"), c.world->rank() >= 2 ? 1u : 0u);
      EXPECT_EQ(comm->counts().size(), c.world->rank() >= 2 ? 2u : 1u);  // split itself is not counted
    }
    s.synchronize();
  });
}

}  // namespace
}  // namespace sherd::test
