// Momentum, update and copy passes over segments, in bits against scalar loops.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "lab.h"

namespace sherd::test {
namespace {

constexpr DType kPayloads[] = {DType::f32, DType::bf16, DType::f16};

float rounded(float v, DType t) {
  return t == DType::bf16 ? float(bf16(v)) : t == DType::f16 ? float(f16(v)) : v;
}

/// Sizes and places of segments inside buffers of kTotal elements: out of order, empty, long and odd.
struct Piece {
  int64_t begin, count, at;
};
const std::vector<Piece> kPieces = {
    {0, 1, 70000}, {1, 0, 5}, {1, 7, 11}, {8, 33000, 30003}, {33008, 29001, 18}};
constexpr int64_t kTotal = 70001;

struct Momentum {
  Floats buffer, packed;
};

Momentum momentum(Lab& lab, DType payload, bool nesterov, float l2, const Floats& gradient,
                  const std::vector<Piece>& pieces) {
  const Tensor b = lab.random({kTotal}, 1), g = lab.tensor({kTotal}, gradient), w = lab.random({kTotal}, 3);
  const Tensor packed = lab.full({kTotal}, 9, payload);
  std::vector<MomentumSegment> segments;
  for (auto [begin, count, at] : pieces)
    segments.push_back({b.data<float>() + begin, g.data<float>() + begin,
                        l2 == 0 ? nullptr : w.data<float>() + begin, count, at});
  ops::muon_momentum(lab.s, packed, segments, 0.95f, nesterov, l2);
  return {lab.floats(b), lab.floats(packed)};
}

TEST(MuonMomentum, HandWorkedStep) {
  for (const char* kernels : {kFast, "reference"}) {
    for (bool nesterov : {false, true}) {
      Lab lab(kernels);
      const Tensor b = lab.full({1}, 2), g = lab.full({1}, 3), w = lab.full({1}, 2), packed = lab.empty({1});
      const MomentumSegment s{b.data<float>(), g.data<float>(), w.data<float>(), 1, 0};
      ops::muon_momentum(lab.s, packed, {&s, 1}, 0.75f, nesterov, 0.5f);  // g' = 3 + 0.5 * 2 = 4
      EXPECT_EQ(lab.floats(b), Floats{2.5f});                             // 2 + 0.25 (4 - 2)
      EXPECT_EQ(lab.floats(packed), Floats{nesterov ? 2.875f : 2.5f});    // 4 + 0.75 (2.5 - 4)
    }
  }
}

TEST(MuonMomentum, EqualsTheScalarLoopToTheBit) {
  const Floats b0 = normal(kTotal, 1), g = normal(kTotal, 2), w = normal(kTotal, 3);
  for (DType payload : kPayloads)
    for (bool nesterov : {false, true})
      for (float l2 : {0.0f, 0.1f}) {
        Momentum want{b0, Floats(kTotal, 9)};
        for (auto [begin, count, at] : kPieces)
          for (int64_t i = 0; i < count; ++i) {
            const size_t e = static_cast<size_t>(begin + i);
            // volatile: no compiler may fuse a multiplication with an addition here.
            volatile float decay = l2 * w[e];
            const float gi = l2 == 0 ? g[e] : g[e] + decay;
            volatile float move = (1 - 0.95f) * (gi - want.buffer[e]);
            want.buffer[e] += move;
            volatile float look = 0.95f * (want.buffer[e] - gi);
            want.packed[static_cast<size_t>(at + i)] =
                rounded(nesterov ? gi + look : want.buffer[e], payload);
          }
        for (const char* kernels : {kFast, "reference"}) {
          Lab lab(kernels, 2);
          const Momentum got = momentum(lab, payload, nesterov, l2, g, kPieces);
          EXPECT_EQ(bits(got.buffer), bits(want.buffer)) << kernels << name_of(payload) << nesterov << l2;
          EXPECT_EQ(bits(got.packed), bits(want.packed)) << kernels << name_of(payload) << nesterov << l2;
        }
      }
}

TEST(MuonMomentum, BitsDoNotDependOnHowRangesAreCut) {
  const Floats g = normal(kTotal, 2);
  auto run = [&](int threads, const std::vector<int64_t>& cuts) {
    Lab lab(kFast, threads);
    std::vector<Piece> pieces;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) pieces.push_back({cuts[i], cuts[i + 1] - cuts[i], cuts[i]});
    const Momentum m = momentum(lab, DType::bf16, true, 0.1f, g, pieces);
    return std::pair(bits(m.buffer), bits(m.packed));
  };
  const auto whole = run(1, {0, kTotal});
  EXPECT_EQ(run(1, {0, 1, 3, 50, 99, 16384, 16385, 40002, kTotal}), whole);
#if !defined(__SANITIZE_THREAD__)
  EXPECT_EQ(run(2, {0, kTotal}), whole);
  EXPECT_EQ(run(3, {0, 5, 60001, kTotal}), whole);
#endif
}

TEST(MuonMomentum, WhatIsNotFiniteLeavesTheBufferAndPacksNan) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  Floats g = normal(kTotal, 2);
  const Floats b0 = normal(kTotal, 1);
  const std::vector<size_t> bad = {0, 17, 100, 65536, 70000};
  for (size_t i = 0; i < bad.size(); ++i) g[bad[i]] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
  g[55] = kLargest;  // finite
  for (const char* kernels : {kFast, "reference"})
    for (DType payload : kPayloads)
      for (bool nesterov : {false, true}) {
        Lab lab(kernels);
        const Momentum m = momentum(lab, payload, nesterov, 0, g, {{0, kTotal, 0}});
        for (size_t i = 0; i < g.size(); ++i) {
          const bool is_bad = std::find(bad.begin(), bad.end(), i) != bad.end();
          ASSERT_EQ(std::isnan(m.packed[i]), is_bad) << i;
          if (is_bad) {
            ASSERT_EQ(m.buffer[i], b0[i]) << i;
          }
        }
        EXPECT_NE(m.buffer[55], b0[55]);
      }
}

TEST(MuonUpdate, EqualsTheScalarLoopToTheBit) {
  const Floats w0 = normal(kTotal, 1), o = normal(kTotal, 2);
  for (DType payload : kPayloads) {
    Floats want = w0;
    for (size_t p = 0; p < kPieces.size(); ++p)
      for (int64_t i = 0; i < kPieces[p].count; ++i) {
        float& w = want[static_cast<size_t>(kPieces[p].begin + i)];
        volatile float kept = (1 - 0.01f * float(p)) * w;
        volatile float move = -0.02f * rounded(o[static_cast<size_t>(kPieces[p].at + i)], payload);
        w = kept + move;
      }
    for (const char* kernels : {kFast, "reference"}) {
      Lab lab(kernels, 2);
      const Tensor w = lab.tensor({kTotal}, w0), packed = lab.tensor({kTotal}, o, payload);
      std::vector<UpdateSegment> segments;
      for (auto [begin, count, at] : kPieces)
        segments.push_back({w.data<float>() + begin, count, at, 1 - 0.01f * float(segments.size()), -0.02f});
      ops::muon_update(lab.s, segments, packed);
      EXPECT_EQ(bits(lab.floats(w)), bits(want)) << kernels << name_of(payload);
    }
  }
}

TEST(MuonMomentum, GradientsCountTimesTheFactorAsIfScaledBefore) {
  const int64_t n = 1003;
  for (const char* kernels : {kFast, "reference"})
    for (const float l2 : {0.0f, 0.1f})
      for (const bool nesterov : {false, true}) {
        Lab lab(kernels);
        const Tensor factor = lab.full({1}, 0.3), w = lab.random({n}, 3);
        const auto run = [&](bool inside) {
          const Tensor b = lab.random({n}, 1), g = lab.random({n}, 2), packed = lab.full({n}, 9);
          const Floats before = lab.floats(g);
          if (!inside) ops::scale_by(lab.s, g, factor);
          const MomentumSegment s{b.data<float>(), g.data<float>(), w.data<float>(), n, 0};
          ops::muon_momentum(lab.s, packed, {&s, 1}, 0.95f, nesterov, l2, {}, inside ? factor : Tensor());
          EXPECT_EQ(lab.floats(g) == before, inside);
          return std::pair(bits(lab.floats(b)), bits(lab.floats(packed)));
        };
        EXPECT_EQ(run(true), run(false)) << kernels << " " << l2 << " " << nesterov;
      }
}

TEST(MuonUpdate, CopyIsTheNewWeightRoundedOnce) {
  const Floats w0 = normal(kTotal, 1), o = normal(kTotal, 2);
  for (const DType payload : kPayloads)
    for (const DType type : kPayloads)
      for (const char* kernels : {kFast, "reference"}) {
        Lab lab(kernels, 2);
        const Tensor packed = lab.tensor({kTotal}, o, payload), copy = lab.full({kTotal}, 7, type);
        const auto run = [&](bool copies) {
          const Tensor w = lab.tensor({kTotal}, w0);
          std::vector<UpdateSegment> segments;
          for (auto [begin, count, at] : kPieces)  // one of them without a copy
            segments.push_back({w.data<float>() + begin, count, at, 0.99f, -0.02f,
                                copies && begin != 8 ? copy.flat(begin, begin + count).raw() : nullptr});
          ops::muon_update(lab.s, segments, packed, {}, type);
          return lab.floats(w);
        };
        const Floats w = run(false);
        EXPECT_EQ(bits(run(true)), bits(w));
        Floats want(kTotal, 7);
        for (auto [begin, count, at] : kPieces)
          for (int64_t i = begin; begin != 8 && i < begin + count; ++i)
            want[static_cast<size_t>(i)] = rounded(w[static_cast<size_t>(i)], type);
        EXPECT_EQ(bits(lab.floats(copy)), bits(want)) << kernels << name_of(payload) << name_of(type);
      }
}

TEST(CopySegments, CastsBetweenAllPayloads) {
  const Floats values = normal(kTotal, 4);
  for (DType from : kPayloads)
    for (DType to : kPayloads) {
      Floats want(kTotal, 9);
      for (auto [begin, count, at] : kPieces)
        for (int64_t i = 0; i < count; ++i)
          want[static_cast<size_t>(at + i)] =
              rounded(rounded(values[static_cast<size_t>(begin + i)], from), to);
      for (const char* kernels : {kFast, "reference"}) {
        Lab lab(kernels, 2);
        const Tensor source = lab.tensor({kTotal}, values, from), target = lab.full({kTotal}, 9, to);
        std::vector<CopySegment> segments;
        for (auto [begin, count, at] : kPieces) segments.push_back({at, begin, count});
        const int64_t before = lab.device->copied_bytes();
        ops::copy_segments(lab.s, target, source, segments);
        EXPECT_EQ(bits(lab.floats(target)), bits(want)) << kernels << name_of(from) << name_of(to);
        EXPECT_EQ(lab.device->copied_bytes() - before, (1 + 7 + 33000 + 29001) * size_of(from));
      }
    }
}

TEST(Segments, NoneIsFine) {
  Lab lab;
  const Tensor packed = lab.full({2}, 3);
  ops::muon_momentum(lab.s, packed, {}, 0.9f, true);
  ops::muon_update(lab.s, {}, packed);
  ops::copy_segments(lab.s, packed, lab.empty({0}), {});
  EXPECT_EQ(lab.floats(packed), Floats(2, 3));
}

TEST(Segments, Rejects) {
  Lab lab;
  const Tensor x = lab.full({4}, 1), packed = lab.empty({4}), i = lab.empty({4}, DType::i32);
  float* p = x.data<float>();
  auto momentum_of = [&](MomentumSegment s, float l2 = 0, float mu = 0.9f) {
    ops::muon_momentum(lab.s, packed, {&s, 1}, mu, true, l2);
  };
  EXPECT_NO_THROW(momentum_of({p, p, nullptr, 1, -1}));  // packs nothing
  EXPECT_THROW(momentum_of({p, p, nullptr, 4, 1}), ShapeMismatch);
  EXPECT_THROW(momentum_of({p, p, nullptr, -1, 1}), ShapeMismatch);
  EXPECT_THROW(momentum_of({p, p, nullptr, 1, -2}), ShapeMismatch);
  EXPECT_THROW(momentum_of({p, nullptr, nullptr, 1, 0}), ShapeMismatch);
  EXPECT_THROW(momentum_of({p, p, nullptr, 1, 0}, 0.1f), ShapeMismatch);  // l2 reads the weight
  EXPECT_THROW(momentum_of({p, p, nullptr, 1, 0}, 0, 1.5f), InvalidArgument);
  EXPECT_THROW(ops::muon_momentum(lab.s, i, {}, 0.9f, true), ShapeMismatch);
  const UpdateSegment outside{p, 2, 3}, null{nullptr, 2, 0};
  EXPECT_THROW(ops::muon_update(lab.s, {&outside, 1}, packed), ShapeMismatch);
  EXPECT_THROW(ops::muon_update(lab.s, {&null, 1}, packed), ShapeMismatch);
  EXPECT_THROW(ops::muon_update(lab.s, {}, packed, {}, DType::i32), ShapeMismatch);
  EXPECT_THROW(ops::muon_momentum(lab.s, packed, {}, 0.9f, true, 0, {}, x), ShapeMismatch);  // four factors
  const CopySegment far{0, 3, 2}, wide{3, 0, 2}, one{0, 0, 1};
  EXPECT_THROW(ops::copy_segments(lab.s, x, packed, {&far, 1}), ShapeMismatch);
  EXPECT_THROW(ops::copy_segments(lab.s, x, packed, {&wide, 1}), ShapeMismatch);
  EXPECT_THROW(ops::copy_segments(lab.s, x, x, {&one, 1}), InvalidArgument);
  lab.s.synchronize();  // nothing was queued
}

TEST(MuonSegments, ANumberOnTheDeviceStopsBuffersAndWeightsButNotMessages) {
  const int64_t n = 2000;
  for (const char* kernels : {kFast, "reference"})
    for (const DType dtype : {DType::f32, DType::f16}) {
      Lab lab(kernels);
      const Tensor g = lab.random({n}, 1);
      ops::fill(lab.s, g.flat(5, 6), NAN);
      const auto run = [&](int64_t stop) {
        const Tensor skip = lab.full({1}, static_cast<double>(stop), DType::i64);
        const Tensor b = lab.random({n}, 2), w = lab.random({n}, 3), packed = lab.full({n}, 9, dtype);
        const MomentumSegment momentum{b.data<float>(), g.data<float>(), w.data<float>(), n, 0};
        const UpdateSegment update{w.data<float>(), n, 0, 0.9f, 0.1f};
        ops::muon_momentum(lab.s, packed, {&momentum, 1}, 0.9f, true, 0.01f, skip);
        const Floats sent = lab.floats(packed);
        ops::fill(lab.s, packed, 2);
        ops::muon_update(lab.s, {&update, 1}, packed, skip);
        return std::tuple(bits(sent), lab.floats(b), lab.floats(w));
      };
      const auto [sent, b, w] = run(0);
      const auto [sent_too, still_b, still_w] = run(1);
      EXPECT_EQ(sent_too, sent);
      EXPECT_EQ(still_b, lab.floats(lab.random({n}, 2)));
      EXPECT_EQ(still_w, lab.floats(lab.random({n}, 3)));
      EXPECT_NE(b, still_b);
      EXPECT_NE(w, still_w);
    }
}

/// Statuses and values after a check of four segments, of which two share a status.
std::pair<std::vector<int32_t>, Floats> checked(Lab& lab, const Floats& values, bool clears, int64_t skip) {
  const int64_t n = static_cast<int64_t>(values.size()) / 4;
  const Tensor v = lab.tensor({4 * n}, values), status = lab.empty({3}, DType::i32);
  const std::vector<int32_t> before = {0, 2, 0};
  ops::copy_from_host(lab.s, status, before.data(), status.nbytes());
  const Tensor stop = lab.empty({1}, DType::i64);
  ops::fill(lab.s, stop, static_cast<double>(skip));
  std::vector<CheckedSegment> segments;
  for (int64_t i = 0; i < 4; ++i)
    segments.push_back({v.data<float>() + i * n, n, status.data<int32_t>() + std::min<int64_t>(i, 2)});
  ops::check_finite(lab.s, segments, MatrixStatus::bad_result, clears, stop);
  std::vector<int32_t> found(3);
  ops::copy_to_host(lab.s, found.data(), status);
  return {found, lab.floats(v)};
}

TEST(CheckFinite, MarksAndClearsWhatIsNotFinite) {
  constexpr int64_t kEach = 5003;  // odd, and more than one thread's share
  Lab lab(kFast, 2);
  for (const float wrong : {NAN, kInf, -kInf})
    for (const int64_t at : {kEach, 2 * kEach - 1, 3 * kEach + 17}) {
      Floats values = normal(4 * kEach, 1);
      values[static_cast<size_t>(at)] = wrong;
      const int32_t second = 2, third = at >= 2 * kEach ? 3 : 0;  // a status that is not fine stays
      const auto same = [&](float a, float b) { return std::isnan(a) ? std::isnan(b) : a == b; };
      for (const bool clears : {false, true}) {
        const auto [status, after] = checked(lab, values, clears, 0);
        EXPECT_THAT(status, ::testing::ElementsAre(0, second, third));
        for (size_t i = 0; i < values.size(); ++i) {
          const int32_t of_it = i < kEach ? 0 : i < 2 * kEach ? second : third;
          ASSERT_TRUE(same(after[i], clears && of_it != 0 ? 0 : values[i])) << i;
        }
      }
      const auto [status, after] = checked(lab, values, true, 1);
      EXPECT_THAT(status, ::testing::ElementsAre(0, 2, 0));
      EXPECT_TRUE(same(after[static_cast<size_t>(at)], wrong)) << "skip";
    }
  const CheckedSegment bare{nullptr, 3, nullptr};
  EXPECT_THROW(ops::check_finite(lab.s, {&bare, 1}, MatrixStatus::bad_result, false), ShapeMismatch);
}

}  // namespace
}  // namespace sherd::test
