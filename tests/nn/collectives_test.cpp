// Collectives on values: values and gradients on several ranks are those of one rank with all rows.
#include <sherd/nn/collectives.h>

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "differences.h"
#include "support/message_of.h"
#include "support/toy_model.h"

namespace sherd::test {
namespace {

using nn::Var;
using Floats = std::vector<float>;

Tensor values(Device& device, const Shape& shape, int64_t salt) {
  Floats all(static_cast<size_t>(numel_of(shape)));
  for (size_t i = 0; i < all.size(); ++i)
    all[i] = std::sin(0.7f * static_cast<float>(i) + static_cast<float>(salt));
  const Tensor t = Tensor::empty(device, shape, DType::f32, "test");
  ops::copy_from_host(device.compute(), t, all.data(), t.nbytes());
  return t;
}

using Function = std::function<Var(const std::shared_ptr<Communicator>&, const Var&)>;

/// What f gives on each rank, and the gradient of x for output gradients that differ by rank and element.
struct Seen {
  std::vector<Floats> x, y, dy, dx;
  std::vector<Shape> shapes;
};

Seen run(int ranks, const std::function<Shape(int)>& shape, const Function& f) {
  Seen seen;
  for (auto* all : {&seen.x, &seen.y, &seen.dy, &seen.dx}) all->resize(static_cast<size_t>(ranks));
  seen.shapes.resize(static_cast<size_t>(ranks));
  launch(ranks, [&](RankContext& r) {
    const auto me = static_cast<size_t>(r.world->rank());
    Stream& s = r.device->compute();
    nn::Tape tape;
    const Var x = tape.leaf(values(*r.device, shape(r.world->rank()), r.world->rank()));
    const Var y = f(r.world, x);
    const Tensor dy = values(*r.device, y.shape(), 100 + r.world->rank());
    seen.x[me] = ops::to_floats(s, x.value());
    seen.y[me] = ops::to_floats(s, y.value());
    seen.dy[me] = ops::to_floats(s, dy);
    seen.shapes[me] = y.shape();
    tape.backward(y, dy);
    seen.dx[me] = ops::to_floats(s, tape.gradient(x));
  });
  return seen;
}

/// All functions are linear: sum over ranks of <dy, f(x)> = sum over ranks of <dx, x>, for every x.
void expect_adjoint(const Seen& seen) {
  double there = 0, back = 0, size = 0;
  for (size_t r = 0; r < seen.x.size(); ++r) {
    for (size_t i = 0; i < seen.y[r].size(); ++i) there += double{seen.y[r][i]} * seen.dy[r][i];
    for (size_t i = 0; i < seen.x[r].size(); ++i) back += double{seen.x[r][i]} * seen.dx[r][i];
    for (size_t i = 0; i < seen.y[r].size(); ++i) size += std::abs(double{seen.y[r][i]} * seen.dy[r][i]);
  }
  EXPECT_NEAR(there, back, 1e-6 * size);  // of sums of up to 8 elements in f32
}

int64_t index3(const Shape& s, int64_t a, int64_t b, int64_t c) { return (a * s[1] + b) * s[2] + c; }

TEST(Collectives, AllGatherPutsRanksBehindEachOther) {
  for (const int ranks : {1, 2, 3, 4})
    for (const int64_t dim : {0, 1, 2, -1}) {
      const Shape x{2, 3, 5};
      const Seen seen = run(
          ranks, [&](int) { return x; }, [&](auto& c, const Var& v) { return nn::all_gather(c, v, dim); });
      Shape want = x;
      const auto d = static_cast<size_t>(dim < 0 ? 2 : dim);
      want[d] *= ranks;
      for (size_t r = 0; r < seen.x.size(); ++r) {
        ASSERT_EQ(seen.shapes[r], want);
        for (int64_t i = 0; i < numel_of(want); ++i) {
          int64_t at[3] = {i / (want[1] * want[2]), i / want[2] % want[1], i % want[2]};
          const auto from = static_cast<size_t>(at[d] / x[d]);
          at[d] %= x[d];
          ASSERT_EQ(seen.y[r][static_cast<size_t>(i)],
                    seen.x[from][static_cast<size_t>(index3(x, at[0], at[1], at[2]))]);
        }
      }
      expect_adjoint(seen);
    }
}

TEST(Collectives, ReduceScatterAndAllReduceSum) {
  for (const int ranks : {1, 2, 3, 4}) {
    const Shape x{12, 2};
    const auto of = [&](const Function& f) {
      return run(
          ranks, [&](int) { return x; }, f);
    };
    const Seen part = of([](auto& c, const Var& v) { return nn::reduce_scatter(c, v); });
    const Seen all = of([](auto& c, const Var& v) { return nn::all_reduce(c, v); });
    expect_adjoint(part);
    expect_adjoint(all);
    const size_t slice = 24 / static_cast<size_t>(ranks);
    for (size_t r = 0; r < part.y.size(); ++r) {
      ASSERT_EQ(part.y[r].size(), slice);
      for (size_t i = 0; i < slice; ++i) ASSERT_EQ(part.y[r][i], all.y[0][r * slice + i]);
      for (size_t i = 0; i < 24; ++i) {
        double sum = 0;
        for (const Floats& v : all.x) sum += v[i];
        ASSERT_NEAR(all.y[r][i], sum, 1e-6 * ranks);
      }
    }
  }
}

TEST(Collectives, AllToAllOfEqualSlicesTwiceIsTheSame) {
  for (const int ranks : {1, 2, 4})
    for (const int64_t dim : {0, 1}) {
      const Function once = [&](auto& c, const Var& v) { return nn::all_to_all(c, v, dim); };
      const auto shape = [](int) { return Shape{4, 8}; };
      expect_adjoint(run(ranks, shape, once));
      const Seen twice = run(ranks, shape, [&](auto& c, const Var& v) { return once(c, once(c, v)); });
      EXPECT_EQ(twice.y, twice.x);
      EXPECT_EQ(twice.dx, twice.dy);
    }
}

TEST(Collectives, AllToAllOfUnequalRowsSomeEmpty) {
  const int ranks = 3;
  const std::vector<std::vector<int64_t>> rows{{0, 2, 1}, {0, 0, 0}, {3, 0, 2}};  // from, to
  const Seen seen = run(
      ranks,
      [&](int r) {
        return Shape{rows[r][0] + rows[r][1] + rows[r][2], 2};
      },
      [&](const std::shared_ptr<Communicator>& c, const Var& v) {
        const auto me = static_cast<size_t>(c->rank());
        return nn::all_to_all(c, v, rows[me], {rows[0][me], rows[1][me], rows[2][me]});
      });
  expect_adjoint(seen);
  EXPECT_EQ(seen.y[0], Floats(seen.x[2].begin(), seen.x[2].begin() + 6));
  EXPECT_EQ(seen.y[1], Floats(seen.x[0].begin(), seen.x[0].begin() + 4));
  EXPECT_EQ(seen.y[2].size(), 6u);
}

/// Two towers, whose rows of one index belong together: the mean over this rank's rows of the cross-entropy of a row's own partner among
/// those of all ranks. fully_shard() means the ranks' gradients; here they are summed, hence 1 / ranks.
TEST(Collectives, AContrastiveLossOfFourRanksIsThatOfOne) {
  constexpr int64_t kRows = 8, kIn = 5, kOut = 3;
  struct Trained {
    double loss = 0;
    Floats gradient = Floats(2 * kIn * kOut, 0.0f);
  };
  const auto train = [&](int ranks) {
    Trained all;
    std::mutex mutex;
    launch(ranks, [&](RankContext& r) {
      Stream& s = r.device->compute();
      const int64_t rows = kRows / ranks, first = r.world->rank() * rows;
      nn::Tape tape;
      const Var w = tape.leaf(values(*r.device, {2, kIn, kOut}, 1));
      const auto tower = [&](int64_t i, int64_t salt) {
        const Var x = tape.input(values(*r.device, {kRows, kIn}, salt).rows(first, first + rows));
        return nn::matmul(x, nn::reshape(nn::slice(w, 0, i, i + 1), {kIn, kOut}));
      };
      const Var text = tower(0, 3), image = nn::all_gather(r.world, tower(1, 4));
      std::vector<int32_t> own;
      for (int64_t i = first; i < first + rows; ++i) own.push_back(static_cast<int32_t>(i));
      const Tensor targets = Tensor::empty(*r.device, {rows}, DType::i32, "test");
      ops::copy_from_host(s, targets, own.data(), targets.nbytes());
      const Var loss = nn::mean(nn::token_losses(nn::matmul(text, image, {.transpose_b = true}), targets));
      tape.backward(loss);
      const Floats value = ops::to_floats(s, loss.value()), gradient = ops::to_floats(s, tape.gradient(w));
      std::lock_guard lock(mutex);
      all.loss += double{value[0]} / ranks;
      for (size_t i = 0; i < gradient.size(); ++i) all.gradient[i] += gradient[i] / static_cast<float>(ranks);
    });
    return all;
  };
  const Trained one = train(1);
  for (const int ranks : {2, 4}) {
    const Trained many = train(ranks);
    EXPECT_NEAR(many.loss, one.loss, 1e-6);
    for (size_t i = 0; i < one.gradient.size(); ++i) EXPECT_NEAR(many.gradient[i], one.gradient[i], 1e-6);
  }
}

TEST(Collectives, BatchNormOfUnequalBatchesIsThatOfAllRows) {
  constexpr int64_t kChannels = 3, kWidth = 2;
  const std::vector<std::vector<int64_t>> batches{{7}, {4, 3}, {1, 0, 6}, {2, 2, 2, 1}};
  struct Result {
    Floats y, dx, mean, variance, dw = Floats(kChannels, 0.0f);
  };
  const auto normalise = [&](const std::vector<int64_t>& rows) {
    std::vector<Result> each(rows.size());
    launch(static_cast<int>(rows.size()), [&](RankContext& r) {
      const auto me = static_cast<size_t>(r.world->rank());
      Stream& s = r.device->compute();
      int64_t first = 0;
      for (size_t i = 0; i < me; ++i) first += rows[i];
      const auto own = [&](int64_t salt) {
        return values(*r.device, {7, kChannels, kWidth}, salt).rows(first, first + rows[me]);
      };
      nn::Tape tape;
      const Var x = tape.leaf(own(1)), w = tape.leaf(values(*r.device, {kChannels}, 2)),
                b = tape.leaf(values(*r.device, {kChannels}, 3));
      nn::BatchNormOptions o{.running_mean = values(*r.device, {kChannels}, 4),
                             .running_variance = values(*r.device, {kChannels}, 5)};
      o.ranks = r.world;
      const Var y = nn::batch_norm(x, w, b, o);
      tape.backward(y, own(6));
      each[me] = {ops::to_floats(s, y.value()), ops::to_floats(s, tape.gradient(x)),
                  ops::to_floats(s, o.running_mean), ops::to_floats(s, o.running_variance),
                  ops::to_floats(s, tape.gradient(w))};
    });
    Result all = each[0];
    for (size_t i = 1; i < each.size(); ++i) {
      EXPECT_EQ(each[i].mean, all.mean);
      EXPECT_EQ(each[i].variance, all.variance);
      all.y.insert(all.y.end(), each[i].y.begin(), each[i].y.end());
      all.dx.insert(all.dx.end(), each[i].dx.begin(), each[i].dx.end());
      for (size_t k = 0; k < all.dw.size(); ++k) all.dw[k] += each[i].dw[k];
    }
    return all;
  };
  const Result one = normalise(batches[0]);
  for (const auto& rows : batches) {
    const Result many = normalise(rows);
    for (const auto& [got, want] :
         {std::pair(&many.y, &one.y), std::pair(&many.dx, &one.dx), std::pair(&many.mean, &one.mean),
          std::pair(&many.variance, &one.variance), std::pair(&many.dw, &one.dw)}) {
      ASSERT_EQ(got->size(), want->size());
      for (size_t i = 0; i < want->size(); ++i)
        ASSERT_NEAR((*got)[i], (*want)[i], 2e-6 * std::max(1.0f, std::abs((*want)[i])));
    }
  }
}

TEST(Collectives, RefuseWhatDoesNotDivide) {
  launch(2, [](RankContext& r) {
    nn::Tape tape;
    const Var x = tape.leaf(values(*r.device, {3, 2}, 1));
    EXPECT_THAT(message_of<ShapeMismatch>([&] { nn::reduce_scatter(r.world, x); }),
                AllOf(HasSubstr("reduce_scatter"), HasSubstr("3 elements"), HasSubstr("2 ranks")));
    EXPECT_THROW(nn::all_to_all(r.world, x), ShapeMismatch);
    EXPECT_THROW(nn::all_to_all(r.world, x, {1, 1}, {1, 1}), ShapeMismatch);
    EXPECT_THROW(nn::all_to_all(r.world, x, {3}, {1, 1}), ShapeMismatch);
    EXPECT_THROW(nn::all_gather(r.world, x, 2), InvalidArgument);
    EXPECT_EQ(nn::all_reduce(nullptr, x).value().raw(), x.value().raw());
  });
}

}  // namespace
}  // namespace sherd::test
