#include "comm/integer_tensors.h"

namespace sherd::test {
namespace {

TEST(PointToPoint, MessagesOfAPairArriveInOrder) {
  run_ranks(2, [](RankContext& c) {
    Stream& s = c.device->compute();
    for (DType dtype : kAllDTypes) {
      std::vector<Tensor> kept;
      for (int64_t n : {0, 1, 5, 3000}) {
        kept.push_back(make_tensor(*c.device, dtype, c.world->rank() == 0 ? data_of(3, n, n) : poison(n)));
        if (c.world->rank() == 0)
          c.world->send(s, kept.back(), 1);
        else
          c.world->recv(s, kept.back(), 0);
      }
      size_t i = 0;
      for (int64_t n : {0, 1, 5, 3000}) EXPECT_EQ(read_tensor(s, kept[i++]), data_of(3, n, n));
    }
  });
}

class Ring : public testing::TestWithParam<int> {};

/// Even ranks send first, odd ranks receive first: send waits for its receiver.
TEST_P(Ring, PassesValuesOnce) {
  const int ranks = GetParam();
  run_ranks(ranks, [ranks](RankContext& c) {
    Stream& s = c.device->compute();
    const int rank = c.world->rank(), next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    const Tensor out = make_tensor(*c.device, DType::i32, data_of(rank, 0, 11));
    const Tensor in = make_tensor(*c.device, DType::i32, poison(11));
    if (rank % 2 == 0) c.world->send(s, out, next);
    c.world->recv(s, in, previous);
    if (rank % 2 != 0) c.world->send(s, out, next);
    EXPECT_EQ(read_tensor(s, in), data_of(previous, 0, 11));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Ring, testing::Values(2, 3, 4, 7, 8));

TEST(PointToPoint, SendCompletesOnlyWhenTheReceiverHasTheData) {
  run_ranks(2, [](RankContext& c) {
    Stream& s = c.device->compute();
    const Tensor t = make_tensor(*c.device, DType::i32, c.world->rank() == 0 ? Ints{1, 2, 3} : poison(3));
    for (int round = 0; round < 50; ++round) {
      if (c.world->rank() == 0) {
        c.world->send(s, t, 1);
        s.submit("overwrite", [t](ExecutionContext&) { ++t.data<int32_t>()[0]; });
      } else {
        c.world->recv(s, t, 0);
        s.submit("check", [t, round](ExecutionContext&) { EXPECT_EQ(t.data<int32_t>()[0], 1 + round); });
      }
    }
    s.synchronize();
  });
}

}  // namespace
}  // namespace sherd::test
