// Wrong arguments are refused at the call, on the host, with the rank and the operation in the message.

#include "comm/integer_tensors.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

template <class E, class F>
void expect_refused(F call, const std::string& op, const std::string& part) {
  EXPECT_THAT(message_of<E>([&] { call(); }), AllOf(HasSubstr(op + " on rank 1"), HasSubstr(part)));
}

TEST(Arguments, AreCheckedAtTheCall) {
  run_ranks(2, [](RankContext& c) {
    if (c.world->rank() != 1) return;  // nothing is queued, so no rank waits
    Communicator& comm = *c.world;
    Stream& s = c.device->compute();
    const auto f = [&](int64_t n) { return make_tensor(*c.device, DType::f32, poison(n)); };
    const Tensor i = make_tensor(*c.device, DType::i32, poison(2));
    const Tensor u = make_tensor(*c.device, DType::u8, poison(2));
    const std::vector<int64_t> two{1, 2}, three{1, 1, 1}, negative{3, -1};
    using Invalid = InvalidArgument;
    using Shapes = ShapeMismatch;

    expect_refused<Shapes>([&] { comm.all_gather(s, f(5), f(2)); }, "all_gather", "5 elements but needs 4");
    expect_refused<Shapes>([&] { comm.all_gather(s, f(4), i); }, "all_gather", "recv is f32 but send is i32");
    expect_refused<Invalid>([&] { comm.all_gather(s, Tensor(), f(2)); }, "all_gather", "recv is undefined");
    expect_refused<Shapes>([&] { comm.all_gather_v(s, f(3), two, f(1)); }, "all_gather_v",
                           "send of shape [1]");
    expect_refused<Shapes>([&] { comm.all_gather_v(s, f(4), two, f(2)); }, "all_gather_v", "sum of counts");
    expect_refused<Invalid>([&] { comm.all_gather_v(s, f(3), three, f(1)); }, "all_gather_v", "[1, 1, 1]");
    expect_refused<Invalid>([&] { comm.all_gather_v(s, f(2), negative, f(1)); }, "all_gather_v", "[3, -1]");
    expect_refused<Shapes>([&] { comm.reduce_scatter(s, f(2), f(5)); }, "reduce_scatter", "needs 4");
    expect_refused<Invalid>([&] { comm.reduce_scatter(s, u.flat(0, 1), u); }, "reduce_scatter", "u8");
    expect_refused<Invalid>([&] { comm.all_reduce(s, u); }, "all_reduce", "u8");
    expect_refused<Invalid>([&] { comm.all_reduce(s, Tensor()); }, "all_reduce", "undefined");
    expect_refused<Invalid>([&] { comm.broadcast(s, f(1), 2); }, "broadcast", "root 2");
    expect_refused<Shapes>([&] { comm.all_to_all_v(s, f(4), two, f(3), two); }, "all_to_all_v",
                           "recv_counts");
    expect_refused<Shapes>([&] { comm.all_to_all_v(s, f(3), two, f(4), two); }, "all_to_all_v",
                           "send_counts");
    expect_refused<Invalid>([&] { comm.gather_v(s, f(3), two, f(2), -1); }, "gather_v", "root -1");
    expect_refused<Invalid>([&] { comm.gather_v(s, Tensor(), two, f(2), 1); }, "gather_v", "recv");
    expect_refused<Shapes>([&] { comm.gather_v(s, f(4), two, f(2), 1); }, "gather_v", "sum of counts");
    expect_refused<Shapes>([&] { comm.scatter_v(s, f(1), two, f(3), 1); }, "scatter_v", "counts[rank]");
    expect_refused<Shapes>([&] { comm.scatter_v(s, f(2), two, f(2), 1); }, "scatter_v", "sum of counts");
    expect_refused<Invalid>([&] { comm.send(s, f(1), 1); }, "send", "peer 1");
    expect_refused<Invalid>([&] { comm.recv(s, f(1), 2); }, "recv", "peer 2");
    expect_refused<Invalid>([&] { comm.split(-3, 0); }, "split", "-3");
    EXPECT_TRUE(comm.counts().empty());
  });
}

}  // namespace
}  // namespace sherd::test
