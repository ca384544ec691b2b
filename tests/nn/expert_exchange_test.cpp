// Rows that travel to their experts and back.
#include <fmt/format.h>

#include "nets.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using nn::ExpertExchange;
using nn::Tape;
using nn::Var;

// Rows of `rank` for each expert: uneven, and none at all from rank 1 or to the second expert.
int32_t count(int rank, size_t expert) {
  return rank == 1 || expert == 1 ? 0
                                  : static_cast<int32_t>((static_cast<size_t>(3 * rank) + 2 * expert) % 4);
}

template <class T>
Tensor upload(RankContext& rank, Shape shape, DType dtype, const std::vector<T>& values) {
  const Tensor t = Tensor::empty(*rank.device, std::move(shape), dtype, "test");
  ops::copy_from_host(rank.device->compute(), t, values.data(), t.nbytes());
  return t;
}

Tensor upload_counts(RankContext& rank, const std::vector<int32_t>& counts) {
  return upload(rank, {static_cast<int64_t>(counts.size())}, DType::i32, counts);
}

// Returns a value that identifies a row.
float mark(int rank, size_t expert, int32_t i) {
  return static_cast<float>(rank * 10000) + 100 * static_cast<float>(expert) + static_cast<float>(i);
}

TEST(ExpertExchange, RowsArriveByExpertAndReturnAsTheyWere) {
  const std::vector<std::pair<int, size_t>> settings{{1, 3}, {2, 2}, {2, 8}, {3, 6}, {4, 4}, {4, 12}};
  for (const auto& [ranks, experts] : settings) {
    SCOPED_TRACE(fmt::format("{} experts on {} ranks", experts, ranks));
    const int parts = ranks;
    const size_t all = experts;
    launch(ranks, [&](RankContext& rank) {
      Stream& s = rank.device->compute();
      const int me = rank.world->rank();
      const size_t local = all / static_cast<size_t>(parts), first = static_cast<size_t>(me) * local;
      std::vector<int32_t> counts;
      std::vector<float> mine, arriving;
      for (size_t e = 0; e < all; ++e) {
        counts.push_back(count(me, e));
        for (int32_t i = 0; i < counts.back(); ++i)
          mine.insert(mine.end(), {mark(me, e, i), -mark(me, e, i)});
      }
      std::vector<int64_t> offsets{0};
      for (size_t e = first; e < first + local; ++e) {
        offsets.push_back(offsets.back());
        for (int r = 0; r < parts; ++r)
          for (int32_t i = 0; i < count(r, e); ++i, ++offsets.back())
            arriving.insert(arriving.end(), {mark(r, e, i), -mark(r, e, i)});
      }
      const ExpertExchange exchange(rank.world, upload_counts(rank, counts));
      EXPECT_EQ(exchange.offsets(), offsets);
      Tape tape;
      const Var x = tape.leaf(upload(rank, {static_cast<int64_t>(mine.size()) / 2, 2}, DType::f32, mine));
      const Var there = exchange.to_experts(x);
      EXPECT_EQ(ops::to_floats(s, there.value()), arriving);
      const Var back = exchange.from_experts(2 * there);
      ASSERT_EQ(back.shape(), x.shape());
      std::vector<float> doubled = mine;
      for (float& v : doubled) v *= 2;
      EXPECT_EQ(ops::to_floats(s, back.value()), doubled);
      // The gradient takes the same ways: y = 2 x.
      tape.backward(back, upload(rank, x.shape(), DType::f32, mine));
      EXPECT_EQ(ops::to_floats(s, tape.gradient(x)), doubled);
      EXPECT_EQ(rank.world->counts()["all_to_all_v"].calls, parts == 1 ? 0 : 5)
          << "counts, there and back; gradients";

      // Experts may answer in another width, and backward may come with one number for all.
      std::vector<float> answers;
      for (size_t i = 0; i < arriving.size(); i += 2) answers.push_back(arriving[i]);
      const Var answer = tape.leaf(upload(rank, {offsets.back(), 1}, DType::f32, answers));
      const Var home = exchange.from_experts(answer);
      for (size_t i = 0; i < mine.size() / 2; ++i) EXPECT_EQ(ops::to_floats(s, home.value())[i], mine[2 * i]);
      tape.backward(nn::sum(home));
      EXPECT_EQ(ops::to_floats(s, tape.gradient(answer)), std::vector<float>(answers.size(), 1.0f));
    });
  }
}

TEST(ExpertExchange, OfOneRankIsNothing) {
  launch(2, [](RankContext& rank) {
    const Tensor counts = upload_counts(rank, {2, 0, 1});
    const ExpertExchange exchange(nullptr, counts);
    EXPECT_EQ(exchange.offsets(), (std::vector<int64_t>{0, 2, 2, 3}));
    Tape tape;
    const Var x = tape.leaf(upload(rank, {3, 1}, DType::f32, std::vector<float>{1, 2, 3}));
    EXPECT_EQ(exchange.to_experts(x).value().raw(), x.value().raw());
    EXPECT_EQ(exchange.from_experts(x).value().raw(), x.value().raw());
    EXPECT_EQ(tape.size(), 0);
  });
}

TEST(ExpertExchange, RefusesExpertsThatCannotBeSharedOutEvenly) {
  launch(3, [](RankContext& rank) {
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  const ExpertExchange exchange(rank.world, upload_counts(rank, {1, 0, 0, 0}));
                }),
                HasSubstr("4 experts cannot be shared out evenly over 3 ranks"));
  });
}

}  // namespace
}  // namespace sherd::test
