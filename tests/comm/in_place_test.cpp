// In place where a verb says so, with the right data; any other overlap is refused at the call.

#include "comm/integer_tensors.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

template <class F>
std::string refusal(F call) {
  try {
    call();
    return "it was accepted";
  } catch (const InvalidArgument& e) {
    return e.what();
  }
}

TEST(InPlace, TheSlicesThatVerbsDocumentGiveTheRightData) {
  run_ranks(3, [](RankContext& c) {
    Communicator& comm = *c.world;
    Stream& s = c.device->compute();
    const int rank = comm.rank();
    const std::vector<int64_t> counts{1, 3, 2};
    const std::vector<int64_t> begins{0, 1, 4, 6};
    const auto piece = [&](const Tensor& t) {
      return t.flat(begins[size_t(rank)], begins[size_t(rank) + 1]);
    };
    const auto ints = [&](Ints v) { return make_tensor(*c.device, DType::i32, v); };
    const Ints mine{10 * rank, 10 * rank + 1, 10 * rank + 2, 10 * rank + 3, 10 * rank + 4, 10 * rank + 5};
    const Ints each{0, 11, 12, 13, 24, 25};

    const Tensor gathered = ints(mine);
    comm.all_gather(s, gathered, gathered.flat(2 * rank, 2 * rank + 2));
    EXPECT_EQ(read_tensor(s, gathered), (Ints{0, 1, 12, 13, 24, 25}));

    const Tensor gathered_v = ints(mine);
    comm.all_gather_v(s, gathered_v, counts, piece(gathered_v));
    EXPECT_EQ(read_tensor(s, gathered_v), each);

    const Tensor summed = ints(mine);
    comm.reduce_scatter(s, summed.flat(2 * rank, 2 * rank + 2), summed);
    Ints expected = mine;
    for (size_t i = 0; i < 2; ++i) {
      const size_t at = 2 * size_t(rank) + i;
      expected[at] = 30 + 3 * int(at);
    }
    EXPECT_EQ(read_tensor(s, summed), expected);

    const Tensor at_root = ints(mine);
    comm.gather_v(s, at_root, counts, piece(at_root), 1);  // elsewhere recv is ignored
    EXPECT_EQ(read_tensor(s, at_root), rank == 1 ? each : mine);

    const Tensor from_root = ints(mine);
    comm.scatter_v(s, piece(from_root), counts, from_root, 1);
    expected = mine;
    for (auto i = size_t(begins[size_t(rank)]); i < size_t(begins[size_t(rank) + 1]); ++i)
      expected[i] = 10 + int(i);
    EXPECT_EQ(read_tensor(s, from_root), expected);
  });
}

TEST(InPlace, AnyOtherOverlapIsRefusedWithTheSliceThatWouldDo) {
  run_ranks(2, [](RankContext& c) {
    if (c.world->rank() != 1) return;  // nothing is queued, so no rank waits
    Communicator& comm = *c.world;
    Stream& s = c.device->compute();
    const Tensor t = make_tensor(*c.device, DType::f32, poison(16));
    const std::vector<int64_t> counts{3, 2}, swapped{2, 3}, halves{4, 4};

    for (const int64_t begin : {0, 1, 3, 5, 7})  // the first is rank 0's
      EXPECT_THAT(
          refusal([&] { comm.all_gather(s, t.flat(0, 8), t.flat(begin, begin + 4)); }),
          AllOf(HasSubstr("all_gather on rank 1"),
                HasSubstr("send begins " + std::to_string(4 * begin) + " bytes after recv and overlaps"),
                HasSubstr("in place it must be recv.flat(4, 8)")));
    EXPECT_THAT(refusal([&] { comm.all_gather(s, t.flat(1, 9), t.flat(0, 4)); }),
                HasSubstr("begins -4 bytes"));
    EXPECT_THAT(refusal([&] { comm.all_gather_v(s, t.flat(0, 5), counts, t.flat(0, 2)); }),
                HasSubstr("recv.flat(3, 5)"));
    EXPECT_THAT(refusal([&] { comm.reduce_scatter(s, t.flat(0, 4), t.flat(0, 8)); }),
                AllOf(HasSubstr("recv begins 0 bytes after send"), HasSubstr("send.flat(4, 8)")));
    EXPECT_THAT(refusal([&] { comm.gather_v(s, t.flat(0, 5), counts, t.flat(2, 4), 1); }),
                HasSubstr("recv.flat(3, 5)"));
    EXPECT_THAT(refusal([&] { comm.scatter_v(s, t.flat(4, 6), counts, t.flat(0, 5), 1); }),
                HasSubstr("send.flat(3, 5)"));
    EXPECT_THAT(refusal([&] { comm.all_to_all_v(s, t.flat(0, 8), halves, t.flat(0, 8), halves); }),
                AllOf(HasSubstr("recv and send overlap"), HasSubstr("never in place")));
    EXPECT_THAT(refusal([&] { comm.all_to_all_v(s, t.flat(4, 9), swapped, t.flat(0, 5), swapped); }),
                HasSubstr("recv begins 16 bytes after send"));
    EXPECT_TRUE(comm.counts().empty());
  });
}

TEST(InPlace, TheMemoryAndTheStreamAreTheRanksOwn) {
  std::vector<std::shared_ptr<Device>> devices(2);
  run_ranks(2, [&](RankContext& c) {
    devices[static_cast<size_t>(c.world->rank())] = c.device;
    c.world->barrier(c.device->compute());
    c.device->compute().synchronize();
    if (c.world->rank() != 1 || !is_here(0, 2)) return;
    Stream& s = c.device->compute();
    const Tensor own = make_tensor(*c.device, DType::f32, poison(4));
    const Tensor theirs = make_tensor(*devices[0], DType::f32, poison(4));
    EXPECT_THAT(refusal([&] { c.world->all_reduce(s, theirs); }),
                AllOf(HasSubstr("all_reduce on rank 1"), HasSubstr("inout belongs to the device of rank 0")));
    EXPECT_THAT(refusal([&] { c.world->all_gather(s, theirs, own.flat(0, 2)); }), HasSubstr("recv belongs"));
    EXPECT_THAT(refusal([&] { c.world->send(s, theirs, 0); }), HasSubstr("data belongs"));
    EXPECT_THAT(refusal([&] { c.world->barrier(devices[0]->compute()); }),
                HasSubstr("stream 'compute' belongs to the device of rank 0"));
  });
}

}  // namespace
}  // namespace sherd::test
