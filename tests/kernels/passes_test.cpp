// Passes over memory at sizes and places where kernels change their way of going: more than a block or a
// launch takes, no boundaries of 16 bytes, long runs, many sources.
#include <gmock/gmock.h>
#include <sherd/kernels/squares/exact_sum.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "lab.h"

namespace sherd::test {
namespace {

/// The bytes of elements [begin, end) of t.
std::vector<char> bytes(Lab& lab, const Tensor& t, int64_t begin, int64_t end) {
  const Tensor part = t.flat(begin, end);
  std::vector<char> out(static_cast<size_t>(part.nbytes()));
  ops::copy_to_host(lab.s, out.data(), part);
  return out;
}

struct Reduction {
  ReduceOp op;
  DType dtype;
  int64_t sources, begin, count;
  int64_t into = -1;  // the source that receives the result; -1: a tensor of its own
};

std::vector<char> reduced(Lab& lab, const Reduction& r) {
  const int64_t n = r.begin + r.count + 2;
  std::vector<Tensor> sources;
  std::vector<const void*> pointers;
  for (int64_t s = 0; s < r.sources; ++s) {
    Floats values = normal(n, static_cast<unsigned>(s), 1000);
    const bool integers = r.dtype == DType::i32 || r.dtype == DType::i64;
    if (s % 5 == 3 && r.count > 4 && r.op != ReduceOp::sum && !integers)
      values[static_cast<size_t>(r.begin) + 4] = NAN;
    const Tensor t = lab.empty({n}, r.dtype);
    if (integers) {
      std::vector<int64_t> wide;  // large: sums wrap
      for (float v : values)
        wide.push_back(static_cast<int64_t>(std::clamp(v, -2000.0f, 2000.0f) * 4e15f) | s);
      std::vector<int32_t> narrow(wide.begin(), wide.end());
      ops::copy_from_host(lab.s, t, r.dtype == DType::i64 ? static_cast<void*>(wide.data()) : narrow.data(),
                          t.nbytes());
    } else {
      if (r.op != ReduceOp::sum || r.dtype != DType::i32) ops::cast(lab.s, t, lab.tensor({n}, values));
      lab.s.synchronize();
    }
    sources.push_back(t);
    pointers.push_back(t.raw());
  }
  const Tensor own = lab.empty({n}, r.dtype);
  const Tensor& target = r.into < 0 ? own : sources[static_cast<size_t>(r.into)];
  ReduceArgs a{.op = r.op, .dtype = r.dtype, .sources = pointers, .begin = r.begin, .count = r.count};
  a.dst = static_cast<char*>(target.raw()) + r.begin * size_of(r.dtype);
  lab.s.submit("reduce",
               [f = lab.device->kernels<ReduceKernels>().reduce, a](ExecutionContext& c) { f(c, a); });
  return bytes(lab, target, r.begin, r.begin + r.count);
}

void expect_reduced_as_reference(const Reduction& r) {
  Lab fast, slow("reference");
  EXPECT_EQ(reduced(fast, r), reduced(slow, r)) << static_cast<int>(r.op) << name_of(r.dtype) << r.sources
                                                << " sources, " << r.begin << " + " << r.count;
}

TEST(Reduce, IsTheTreeOfTheReferenceForAnyNumberOfSources) {
  for (int64_t n : {1, 2, 3, 5, 6, 7, 8, 9, 16, 23, 33, 63, 64, 65, 131})
    expect_reduced_as_reference({ReduceOp::sum, DType::f32, n, 0, 37});
}

TEST(Reduce, EveryTypeAndOperation) {
  for (DType t : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64})
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min})
      for (int64_t n : {3, 11, 67}) {
        if (op != ReduceOp::sum && (t == DType::bf16 || t == DType::f16))
          continue;  // below: NaN's bits are open
        if (op != ReduceOp::sum && n == 67) continue;
        expect_reduced_as_reference({op, t, n, 3, 300});
        expect_reduced_as_reference({op, t, n, 0, 0});
        expect_reduced_as_reference({op, t, n, 1, 1});
        expect_reduced_as_reference({op, t, n, 4, 65, n - 1});
      }
}

TEST(Reduce, NanWinsWhereverItIs) {
  for (const char* kernels : {kFast, "reference"})
    for (ReduceOp op : {ReduceOp::max, ReduceOp::min})
      for (int64_t sources : {2, 5, 70})
        for (int64_t at = 0; at < sources; at += 3) {
          Lab lab(kernels);
          std::vector<Tensor> tensors;
          ReduceArgs a{.op = op, .dtype = DType::bf16, .count = 9};
          for (int64_t s = 0; s < sources; ++s) {
            tensors.push_back(lab.full({9}, s == at ? NAN : static_cast<double>(s), DType::bf16));
            a.sources.push_back(tensors.back().raw());
          }
          const Tensor out = lab.empty({9}, DType::bf16);
          a.dst = out.raw();
          lab.s.submit("reduce", [f = lab.device->kernels<ReduceKernels>().reduce, a](ExecutionContext& c) {
            f(c, a);
          });
          for (float v : lab.floats(out)) EXPECT_TRUE(std::isnan(v)) << kernels << sources << " " << at;
        }
}

TEST(StridedCopy, MovesRunsOfAnySizeAndLeavesTheRest) {
  struct Case {
    int64_t to, from, blocks, run;
  };
  for (DType t : {DType::f32, DType::bf16, DType::f64})
    for (const Case& c : std::initializer_list<Case>{{7, 5, 11, 5},
                                                     {5, 9, 3, 5},
                                                     {8, 0, 4, 8},
                                                     {64, 16, 5, 16},
                                                     {1, 3, 70, 1},
                                                     {6, 6, 9, 6},
                                                     {700, 300, 2, 300},
                                                     {4, 4, 0, 4}})
      expect_bits_of_reference([&](Lab& lab) {
        const int64_t size = std::max(c.to, c.from) * (c.blocks + 1) + c.run + 3;
        const Tensor src = lab.random({size}, 1, t), dst = lab.full({size}, 9, t), out = lab.empty({size});
        ops::strided_copy(lab.s, dst.flat(1, size), c.to, src.flat(3, size), c.from, c.blocks, c.run);
        ops::cast(lab.s, out, dst);
        return lab.floats(out);
      });
}

std::vector<int64_t> squares(Lab& lab, const Floats& x, int64_t begin) {
  const auto n = static_cast<int64_t>(x.size());
  const Tensor acc = lab.full({ExactSum::kWords}, 0, DType::i64);
  ops::accumulate_squares(lab.s, acc, lab.tensor({n}, x).flat(begin, n));
  std::vector<int64_t> words(ExactSum::kWords);
  ops::copy_to_host(lab.s, words.data(), acc);
  return words;
}

void expect_squares_of_reference(const Floats& x, const std::string& what) {
  Lab fast, slow("reference");
  for (int64_t begin : {0, 1, 2, 3})
    if (begin <= static_cast<int64_t>(x.size())) {
      EXPECT_EQ(squares(fast, x, begin), squares(slow, x, begin)) << what << " from " << begin;
    }
}

TEST(Squares, EveryPlaceAndLength) {
  for (int64_t n = 0; n < 14; ++n) expect_squares_of_reference(normal(n, 1), std::to_string(n));
  expect_squares_of_reference(normal(5000, 1), "5000");
  // Tiles of the GPU: full, in part, of one group.
  for (const int64_t n : {1023, 1029, 8191, 8192, 8200, 9216, 17000})
    expect_squares_of_reference(normal(n, 1), std::to_string(n));
}

TEST(Squares, SizesThatComeAndGo) {
  Floats x;
  for (int i = 0; i < 6000; ++i) {  // stretches of equal size, far apart, with outliers, zeros and the like
    const int stretch = i / 400;
    float v = std::ldexp(1 + static_cast<float>(i % 97) / 97, (stretch * 83) % 250 - 125);
    if (i % 61 == 0) v = 0;
    if (i % 173 == 0) v = i % 2 ? 0x1.fffffep127f : 0x1p-149f;
    if (i % 397 == 0) v = i % 2 ? kInf : NAN;
    x.push_back(i % 3 ? v : -v);
  }
  expect_squares_of_reference(x, "stretches");
  expect_squares_of_reference(Floats(3000, 0.0f), "zeros");
  expect_squares_of_reference(Floats(3000, 0x1.fffffep127f), "largest");
  expect_squares_of_reference(Floats(3000, -0x1.8p-130f), "subnormal");
  expect_squares_of_reference(Floats(200, -kInf), "infinite");
}

// Tensors of many sizes go to two sums and to none, and two numbers count what is not finite.
TEST(Squares, OfManyPiecesInOnePass) {
  Floats x = normal(40000, 7);
  for (size_t i = 100; i < x.size(); i += 991) x[i] = i % 2 ? NAN : kInf;
  for (size_t i = 3; i < x.size(); i += 777) x[i] = 0;
  constexpr int64_t kWords = ExactSum::kWords;
  const auto run = [&](Lab& lab, bool at_once) {
    const Tensor words = lab.full({2 * kWords + 2}, 0, DType::i64);
    const Tensor data = lab.tensor({static_cast<int64_t>(x.size())}, x),
                 half = lab.tensor(data.shape(), x, DType::bf16);
    auto* const w = words.data<int64_t>();
    std::vector<SquaresSegment> segments;
    for (int64_t at = 0, i = 0; at < data.numel(); ++i) {
      const int64_t count = std::min(data.numel() - at, i % 11 == 4 ? 0 : i % 17 == 5 ? 5000 : i * 29 % 311);
      const bool narrow = i / 7 % 2 == 1;
      segments.push_back({narrow ? static_cast<const void*>(half.data<bf16>() + at) : data.data<float>() + at,
                          count, i % 3 == 2 ? nullptr : w + (i % 3) * kWords,
                          i % 5 == 4 ? nullptr : w + 2 * kWords + i % 2, narrow ? DType::bf16 : DType::f32});
      at += count;
    }
    EXPECT_GT(segments.size(), 48u) << "more than one launch takes";
    if (at_once) ops::accumulate_squares(lab.s, segments);
    for (const SquaresSegment& s : segments)
      if (!at_once) ops::accumulate_squares(lab.s, {&s, 1});
    std::vector<int64_t> got(static_cast<size_t>(words.numel()));
    ops::copy_to_host(lab.s, got.data(), words);
    return got;
  };
  Lab fast, slow("reference");
  const auto want = run(slow, true);
  EXPECT_GT(want[ExactSum::kNonFinite], 0);
  EXPECT_EQ(want[ExactSum::kElsewhere], 0);
  EXPECT_GT(want[2 * kWords], 0);
  EXPECT_GT(want[2 * kWords + 1], 0);
  EXPECT_EQ(run(fast, true), want);
  EXPECT_EQ(run(fast, false), want);
}

TEST(ScaleBy, ManyPiecesInOnePass) {
  const Floats x = normal(9000, 3);
  for (const float factor : {0.3f, 1.0f}) {
    const auto run = [&](Lab& lab) {
      const Tensor t = lab.tensor({9000}, x), f = lab.full({1}, static_cast<double>(factor));
      std::vector<ScaleSegment> pieces;
      for (int64_t at = 0, i = 0; at < 8000; at += i * 13 % 170, ++i)
        if (i % 4 != 3) pieces.push_back({t.data<float>() + at, i * 13 % 170});
      ops::scale_by(lab.s, pieces, f);
      return lab.floats(t);
    };
    Lab fast, slow("reference");
    const Floats got = run(fast);
    EXPECT_EQ(got, run(slow));
    EXPECT_EQ(got == x, factor == 1);
  }
}

int64_t number(Lab& lab, const Tensor& t) {
  int64_t value = 0;
  ops::copy_to_host(lab.s, &value, t);
  return value;
}

TEST(ClipFactor, AddsUpAnyNumberOfAccumulators) {
  for (int64_t n : {0, 1, 3, 130})
    for (double max_norm : {0.0, 2.0, 1e9}) {
      const auto run = [&](Lab& lab) {
        std::vector<Tensor> all;
        for (int64_t i = 0; i < n; ++i) {
          all.push_back(lab.full({ExactSum::kWords}, 0, DType::i64));
          ops::accumulate_squares(lab.s, all.back(), lab.random({50}, static_cast<unsigned>(i)));
        }
        const Tensor factor = lab.empty({1}), total = lab.empty({ExactSum::kWords}, DType::i64);
        const Tensor skip = lab.full({1}, 7, DType::i64);
        ops::clip_factor(lab.s, factor, total, all, max_norm, skip);
        EXPECT_EQ(number(lab, skip), 0);
        return std::pair(lab.floats(factor), bytes(lab, total, 0, ExactSum::kWords));
      };
      Lab fast, slow("reference");
      EXPECT_EQ(run(fast), run(slow)) << n << " " << max_norm;
    }
}

TEST(ClipFactor, IsOneWhereTheNormIsNotFinite) {
  for (const char* kernels : {kFast, "reference"})
    for (const Floats& x : {Floats{1, NAN}, Floats{3e38f, 3e38f}}) {  // the second: norm beyond fp32
      Lab lab(kernels);
      const Tensor acc = lab.full({ExactSum::kWords}, 0, DType::i64), factor = lab.empty({1}),
                   total = lab.empty({ExactSum::kWords}, DType::i64);
      ops::accumulate_squares(lab.s, acc, lab.tensor({2}, x));
      const Tensor skip = lab.full({1}, 7, DType::i64);
      ops::clip_factor(lab.s, factor, total, {&acc, 1}, 0.5, skip);
      EXPECT_EQ(lab.floats(factor), Floats{1});
      EXPECT_EQ(number(lab, skip), 1);
    }
}

TEST(ClipFactor, SkipsWhenSomethingElsewhereIsNotFinite) {
  for (const char* kernels : {kFast, "reference"})
    for (const double max_norm : {0.0, 0.5}) {
      Lab lab(kernels);
      const Tensor acc = lab.full({ExactSum::kWords}, 0, DType::i64), factor = lab.empty({1}),
                   total = lab.empty({ExactSum::kWords}, DType::i64), skip = lab.full({1}, 7, DType::i64);
      ops::accumulate_squares(lab.s, acc, lab.tensor({2}, {3, 4}));
      ops::fill(lab.s, acc.flat(ExactSum::kElsewhere, ExactSum::kElsewhere + 1), 1);
      ops::clip_factor(lab.s, factor, total, {&acc, 1}, max_norm, skip);
      EXPECT_EQ(lab.floats(factor), Floats{1});
      EXPECT_EQ(number(lab, skip), 1);
    }
}

TEST(AddWords, Wraps) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const std::vector<int64_t> a = {INT64_MAX, -1, 5, 1 << 30, 7}, b = {1, 1, -6, 3, 0};
    const Tensor x = lab.empty({5}, DType::i64), y = lab.empty({5}, DType::i64);
    ops::copy_from_host(lab.s, x, a.data(), 40);
    ops::copy_from_host(lab.s, y, b.data(), 40);
    ops::add_words(lab.s, x.flat(1, 5), y.flat(1, 5));
    ops::add_words(lab.s, x.flat(0, 1), y.flat(0, 1));
    std::vector<int64_t> got(5);
    ops::copy_to_host(lab.s, got.data(), x);
    EXPECT_EQ(got, (std::vector<int64_t>{INT64_MIN, 0, -1, (1 << 30) + 3, 7}));
  }
}

TEST(AccumulateSum, OrderDependsOnTheCountAlone) {
  Lab lab;
  for (int64_t n : {1, 300, 70001}) {
    const Floats x = normal(n, 1);
    const double want = std::accumulate(x.begin(), x.end(), 0.5);
    double got[2] = {};
    for (int64_t shift : {0, 1}) {
      const Tensor out = lab.full({1}, 0.5, DType::f64), room = lab.empty({n + 1});
      ops::copy(lab.s, room.flat(shift, shift + n), lab.tensor({n}, x));
      ops::accumulate_sum(lab.s, out, room.flat(shift, shift + n));
      ops::copy_to_host(lab.s, &got[shift], out);
    }
    EXPECT_EQ(got[0], got[1]);
    EXPECT_NEAR(got[0], want, 1e-12 * static_cast<double>(n));
  }
}

TEST(Segments, MoreThanOneLaunchTakes) {
  constexpr int64_t kSegments = 150, kEach = 37;
  expect_bits_of_reference([&](Lab& lab) {
    const int64_t n = kSegments * kEach;
    const Tensor w = lab.random({n}, 1), b = lab.random({n}, 2), g = lab.random({n}, 3),
                 packed = lab.full({n}, 9), other = lab.full({n}, 8, DType::bf16);
    std::vector<MomentumSegment> momentum;
    std::vector<UpdateSegment> update;
    std::vector<CopySegment> copy;
    for (int64_t i = 0; i < kSegments; ++i) {
      const int64_t at = i * kEach, count = i % 7 == 3 ? 0 : kEach - i % 5, to = (kSegments - 1 - i) * kEach;
      momentum.push_back(
          {b.data<float>() + at, g.data<float>() + at, w.data<float>() + at, count, i % 4 == 1 ? -1 : to});
      update.push_back({w.data<float>() + at, count, to, 1 - 0.001f * static_cast<float>(i), 0.1f});
      copy.push_back({at, to, count});
    }
    ops::muon_momentum(lab.s, packed, momentum, 0.9f, true, 0.01f);
    ops::muon_update(lab.s, update, packed);
    ops::copy_segments(lab.s, other, packed, copy);
    Floats all = lab.floats(w);
    for (const Tensor& t : {b, packed, other})
      for (float v : lab.floats(t)) all.push_back(v);
    return all;
  });
}

}  // namespace
}  // namespace sherd::test
