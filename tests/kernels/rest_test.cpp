// Rest forms of weights and states: rounding, noise, and every pass that reads or writes them.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include <sherd/kernels/normuon/normuon.h>
#include <sherd/kernels/qk_clip/qk_clip.h>
#include <sherd/kernels/soap/detail/state_tensors.h>

#include "rest_values.h"

namespace sherd::test {
namespace {

TEST(Rest, RoundingIsExactInTheMean) {
  int wrong = 0;
  for (uint32_t high = 0; high < 0x10000; ++high)
    for (const uint32_t noise : {0u, 1u, 0x8000u, 0xffffu}) {
      const bool nan = (high & 0x7fff) > 0x7f80;
      const uint32_t got = sherd::rounded(float_of_high(high), static_cast<uint16_t>(noise)).bits;
      wrong += got != (nan ? kQuietNan >> 16 : high);
      if (nan) wrong += !std::isnan(float_of_high(sherd::rounded(float_of(high << 16 | noise), 0xffff).bits));
    }
  EXPECT_FALSE(std::isfinite(float_of_high(sherd::rounded(float_of(0x7f800001u), 0).bits)));
  EXPECT_EQ(wrong, 0);
  for (const uint32_t u : {0x3f801234u, 0xbf808000u, 0x00000001u, 0x8000ffffu, 0x007f8001u, 0x7f7effffu,
                           0xff7e0003u, 0x7f7f4000u, 0x80000000u}) {
    uint32_t away = 0;
    double error = 0;
    for (uint32_t noise = 0; noise < 0x10000; ++noise) {
      const uint32_t high = sherd::rounded(float_of(u), static_cast<uint16_t>(noise)).bits;
      away += high - (u >> 16);
      error += float_of_high(high) - double{float_of(u)};
    }
    EXPECT_EQ(away, u & 0xffff) << std::hex << u;
    EXPECT_EQ(error, u == 0x7f7f4000u ? kInf : 0) << std::hex << u;  // an infinity is its neighbour
  }
}

/// Returns whether high is the bf16 nearest to the finite value of u, ties away from zero.
bool is_nearest(uint32_t u, uint16_t high) {
  const auto value = [](uint32_t of) {  // 2^128 in place of an infinity
    return (of & 0x7fffffffu) == 0x7f800000u ? std::copysign(0x1p128, float_of(of)) : double{float_of(of)};
  };
  const uint32_t near = u & 0xffff0000u, far = near + 0x10000u;
  const bool away = std::abs(value(far) - value(u)) <= std::abs(value(u) - value(near));
  return high == (away ? far : near) >> 16;
}

TEST(Rest, HalvesAreExact) {
  std::mt19937 engine(5);
  std::vector<uint32_t> values = {0,           0x80000000u, 1,           0x80000001u, 0x7fffffu,
                                  0x807fffffu, 0x7f7fffffu, 0xff7fffffu, 0x3f807fffu, 0x3f808001u};
  for (uint32_t high = 0; high < 0x10000; ++high) values.push_back(high << 16 | 0x8000u);
  for (int i = 0; i < 200'000; ++i) values.push_back(static_cast<uint32_t>(engine()));
  size_t lost = 0, far = 0;
  for (const uint32_t u : values) {
    const SplitWeight w = sherd::split(float_of(u));
    if ((u & 0x7f800000u) == 0x7f800000u) {
      lost += !std::isnan(joined(w)) || !std::isnan(float_of_high(w.high)) || w.low != 0;
    } else {
      lost += bits_of(joined(w)) != u || w.low != (u & 0xffff);
      far += !is_nearest(u, w.high);
    }
  }
  EXPECT_EQ(lost, 0u);
  EXPECT_EQ(far, 0u);
  for (const float v : {kInf, -kInf}) EXPECT_EQ(joined(sherd::split(v)), v);
}

TEST(Rest, TensorsAreSplitAndJoinedAsValues) {
  std::mt19937 engine(6);
  for (const char* kernels : {kFast, "reference"})
    for (const int64_t n : {0, 1, 7, 1003, kEmulated ? 2001 : 20001})
      for (const auto& [from, to, low_to] : {std::array<int64_t, 3>{}, {1, 1, 1}, {3, 0, 1}, {0, 1, 2}}) {
        Lab lab(kernels, 3);
        std::vector<uint32_t> values(place(n)), want(place(n + 9), bits_of(7)), got(want.size());
        for (uint32_t& u : values) u = engine() % 5 == 0 ? 0x7f800001u : static_cast<uint32_t>(engine());
        const auto full = [&](DType dtype) { return lab.full({n + 9}, 7, dtype); };
        const Tensor whole = full(DType::f32), high = full(DType::bf16), low = full(DType::bf16);
        const Tensor part = whole.flat(from, from + n);
        Halfwords want_high(place(n + 9), 0x40e0), want_low = want_high;
        for (int64_t i = 0; i < n; ++i) {
          const SplitWeight w = sherd::split(float_of(values[place(i)]));
          want_high[place(to + i)] = w.high;
          want_low[place(low_to + i)] = w.low;
          want[place(from + i)] = bits_of(joined(w));
        }
        ops::copy_from_host(lab.s, part, values.data(), 4 * n);
        ops::split(lab.s, high.flat(to, to + n), low.flat(low_to, low_to + n), part);
        ops::fill(lab.s, part, 0);
        ops::join(lab.s, part, high.flat(to, to + n), low.flat(low_to, low_to + n));
        ops::copy_to_host(lab.s, got.data(), whole);
        expect_equal(halfwords(lab, {high}), want_high, "high");
        expect_equal(halfwords(lab, {low}), want_low, "low");
        expect_equal(got, want, "joined");
      }
}

using PhiloxBlock = std::array<uint32_t, 4>;

/// Philox4x32 with 7 rounds as in the paper (Salmon et al. 2011).
PhiloxBlock plain_philox(PhiloxBlock c, uint64_t key) {
  for (uint32_t round = 0; round < 7; ++round) {
    const uint32_t k0 = static_cast<uint32_t>(key) + round * 0x9E3779B9u,
                   k1 = static_cast<uint32_t>(key >> 32) + round * 0xBB67AE85u;
    const uint64_t p0 = uint64_t{c[0]} * 0xD2511F53u, p1 = uint64_t{c[2]} * 0xCD9E8D57u;
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
  }
  return c;
}

TEST(Rest, NoiseIsPhilox) {
  // Known answers of Random123 for 7 rounds.
  EXPECT_EQ(plain_philox({}, 0), (PhiloxBlock{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
  EXPECT_EQ(plain_philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (PhiloxBlock{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}));
  // Block 2^39 + 1 after 300 updates.
  float count = 300;
  const Noise far{.key = 0x0123456789abcdef, .count = &count, .first = (kOne << 42) + 8};
  const PhiloxBlock golden = {0x6c38fb9e, 0x4937f0cc, 0x6773ab81, 0xbab43c1f};
  for (int64_t i = 0; i < 8; ++i)
    EXPECT_EQ(noise_at(far, i, NoiseUse::weight), golden[place(i / 2)] >> i % 2 * 16 & 0xffff);
  std::mt19937_64 engine(9);
  for (int i = 0; i < 2000; ++i) {
    count = static_cast<float>(engine() % 0x1000001);
    const Noise noise{.key = engine(), .count = &count, .first = static_cast<int64_t>(engine() >> 20)};
    const uint64_t index = static_cast<uint64_t>(noise.first) + 77;
    const PhiloxBlock block =
        plain_philox({static_cast<uint32_t>(index / 8), static_cast<uint32_t>(index >> 35),
                      static_cast<uint32_t>(count), 2},
                     noise.key);
    const uint32_t bits = block[index % 8 / 2] >> index % 2 * 16 & 0xffff;
    for (size_t use = 0; use < 3; ++use)
      ASSERT_EQ(noise_at(noise, 77, kUses[use]), bits * kFactors[use] & 0xffff);
  }
}

TEST(Rest, NoiseFollowsTheIndexInTheTensor) {
  const Noise piece{.first = 2, .width = 5, .pitch = 17, .offset = 3};  // columns [3, 8) of 17
  for (int64_t i = 0; i < 40; ++i) {
    EXPECT_EQ(piece.index(i), (2 + i) / 5 * 17 + 3 + (2 + i) % 5);
    EXPECT_EQ(piece.from(i).index(4), piece.index(i + 4));
  }
  EXPECT_EQ((Noise{.first = 7}.from(5).index(3)), 15);
  const float one = 1, two = 2;
  const Noise base{.key = 1, .count = &one};
  std::vector<std::pair<Noise, NoiseUse>> sources = {{base.from(1000), kUses[0]},
                                                     {base.from(kOne << 33), kUses[0]},
                                                     {{1, &two}, kUses[0]},
                                                     {{2, &one}, kUses[0]},
                                                     {{1 + (kOne << 32), &one}, kUses[0]}};
  for (const NoiseUse use : kUses) sources.push_back({base, use});
  for (size_t a = 0; a < sources.size(); ++a)
    for (size_t b = 0; b < a; ++b) {
      int equal = 0;
      for (int64_t i = 0; i < 1000; ++i)
        equal += noise_at(sources[a].first, i, sources[a].second) ==
                 noise_at(sources[b].first, i, sources[b].second);
      EXPECT_LE(equal, 2) << a << " " << b;  // 1000 / 2^16 by chance
    }
}

/// Returns (1 if rounded away from zero, else 0, less the probability) / standard deviation, for each element.
Floats deviations(const Halfwords& stored, const Floats& exact, const Noise& noise, NoiseUse use) {
  Floats z;
  for (size_t i = 0; i < exact.size(); i += 61)
    EXPECT_EQ(stored[i], sherd::rounded(exact[i], noise_at(noise, static_cast<int64_t>(i), use)).bits);
  for (size_t i = 0; i < exact.size(); ++i) {
    const double p = (bits_of(exact[i]) & 0xffff) / 65536.0, up = stored[i] - int(bits_of(exact[i]) >> 16);
    if ((up != 0 && up != 1) || p == 0) ADD_FAILURE() << "element " << i << ": " << up << " steps, p " << p;
    z.push_back(static_cast<float>((up - p) / std::sqrt(p * (1 - p))));
  }
  return z;
}

/// Returns the deviations for each use of noise, in 16 groups of `each` elements of one value between two bf16 values.
std::array<Floats, 4> deviations_of_uses(Lab& lab, int64_t each, float updates) {
  const int64_t n = 16 * each;
  Floats change, exact, g, first, second, factors;
  for (int64_t i = 0; i < n; ++i) {
    change.push_back(static_cast<float>(2 * (i / each) + 1) / 32 * 0x1p-7f);
    exact.push_back(1 + change.back());
    g.push_back(std::sqrt(2 * exact.back()));
    first.push_back(0.5f * g.back());
    second.push_back(first.back() * g.back());
    if (i % each == 0) factors.push_back(exact.back());
  }
  const auto stored = [&](double value) { return lab.full({n}, value, DType::bf16); };
  const Tensor count = lab.full({1}, updates), w = stored(1), x = stored(1), m = stored(0), v = stored(0),
               master = lab.full({n}, 1), packed = lab.tensor({n}, change), gradient = lab.tensor({n}, g),
               by = lab.tensor({16}, factors), biases = lab.full({1, 2}, 1);
  const Noise noise{.key = hash64(3, "w"), .count = count.data<float>()}, other{hash64(3, "x"), noise.count};
  const UpdateSegment update{w.raw(), n, 0, 1, 1, nullptr, nullptr, noise};
  ops::muon_update(lab.s, {&update, 1}, packed, {}, DType::f32, {Master::bf16});
  AdamWSegment adam{master.raw(), m.raw(), v.raw(), gradient.data<float>(), nullptr, n};
  adam.noise = noise;
  ops::adamw(lab.s, {&adam, 1}, {1, 0.5, 0.5}, biases, DType::f32, {}, {}, {Master::f32, DType::bf16});
  std::vector<HeadScaleSegment> heads;
  for (int64_t at = 0; at < n; at += each)
    heads.push_back({x.data<bf16>() + at, each, by.data<float>() + at / each, nullptr, other.from(at)});
  ops::scale_heads(lab.s, heads, Master::bf16);
  const Noise here{.key = noise.key, .count = &updates}, there{other.key, &updates};
  return {deviations(halfwords(lab, {w}), exact, here, kUses[0]),
          deviations(halfwords(lab, {m}), first, here, kUses[1]),
          deviations(halfwords(lab, {v}), second, here, kUses[2]),
          deviations(halfwords(lab, {x}), exact, there, kUses[0])};
}

/// Returns the correlation of a[i] with b[i + lag], in standard deviations.
double correlation(const Floats& a, const Floats& b, size_t lag = 0) {
  double sum = 0;
  for (size_t i = lag; i < b.size(); ++i) sum += double{a[i - lag]} * b[i];
  return std::abs(sum) / std::sqrt(static_cast<double>(b.size() - lag));
}

// Of all 2^16 values: how many are below both thresholds, for any two uses.
TEST(Rest, UsesOfANoiseAreUncorrelated) {
  constexpr size_t kCells = 256;
  double worst = 0;
  for (const auto& [a, b] : {std::pair(0, 1), {0, 2}, {1, 2}}) {
    std::vector<double> below(kCells * kCells, 0);  // then its sums over rows and columns
    std::vector<int> seen(0x10000, 0);
    for (uint32_t n = 0; n < 0x10000; ++n) {
      const uint32_t x = noise_for(kUses[a], static_cast<uint16_t>(n)),
                     y = noise_for(kUses[b], static_cast<uint16_t>(n));
      ++below[x / 256 * kCells + y / 256];
      ++seen[y];
    }
    EXPECT_THAT(seen, testing::Each(1));
    for (size_t i = 0; i < kCells; ++i)
      for (size_t j = 0; j < kCells; ++j) {
        double& here = below[i * kCells + j];
        if (i > 0) here += below[(i - 1) * kCells + j];
        if (j > 0) here += below[i * kCells + j - 1];
        if (i > 0 && j > 0) here -= below[(i - 1) * kCells + j - 1];
        worst = std::max(worst, std::abs(here / 65536 - static_cast<double>((i + 1) * (j + 1)) / 65536));
      }
  }
  EXPECT_LT(worst, 1e-4);
}

TEST(Rest, NoiseOfThePassesIsUniformAndIndependent) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels, 3);
    const int64_t each = kEmulated ? 1024 : 8192;
    const auto now = deviations_of_uses(lab, each, 41), next = deviations_of_uses(lab, each, 42);
    for (size_t use = 0; use < 4; ++use) {
      const Floats& z = now[use];
      double total = 0, chi_square = 0;
      for (auto i = z.begin(); i != z.end(); i += each) {
        const double sum = std::accumulate(i, i + each, 0.0);
        total += sum;
        chi_square += sum * sum / static_cast<double>(each);
      }
      EXPECT_LE(std::abs(total), 4 * std::sqrt(static_cast<double>(z.size()))) << kernels << " mean " << use;
      EXPECT_GT(chi_square, 2.3) << kernels << " " << use;  // p = 1e-4 on both sides, 16 degrees of freedom
      EXPECT_LT(chi_square, 45.9) << kernels << " " << use;
      EXPECT_LE(correlation(z, next[use]), 4) << kernels << " consecutive updates, use " << use;
      for (const size_t lag : {1, 2, 3, 8})
        EXPECT_LE(correlation(z, z, lag), 4) << kernels << use << " " << lag;
      for (size_t other = 0; other < use; ++other) EXPECT_LE(correlation(z, now[other]), 4) << use << other;
    }
  }
}

TEST(Rest, PassesHaveTheBitsOfTheReference) {
  // Empty, of several threads, across indices of more than 32 bits, and cut over columns.
  std::vector<RestPiece> pieces = {{0, 1},
                                   {0, 0},
                                   {0, 7, {.first = 3}, 0, 299},
                                   {0, 5, {.first = 2}, 0, 1, false},
                                   {0, kEmulated ? 2001 : 21001, {.first = (kOne << 33) - 5}},
                                   {0, 333, {11, nullptr, 11, 9, 31, 4}, 0, 0xffff},
                                   {0, 1501, {13, nullptr, 5, 701, 1001, 13}, 0, 0x1p24f},
                                   {0, 17, {17, nullptr, (kOne << 40) + 1, 1, 2, 1}}};
  int64_t n = 0;
  for (RestPiece& p : pieces) p.begin = std::exchange(n, n + p.count);
  for (RestPiece& p : pieces) p.to = n - p.begin - p.count;
  std::vector<RestOptions> all;
  for (const DType state : {DType::f32, DType::bf16})
    for (const Master form : {Master::f32, Master::bf16, Master::split}) {
      all.push_back({RestKind::adamw, {form, state}});
      all.push_back({RestKind::average, {form, state}});
      if (state == DType::f32) all.push_back({RestKind::heads, {form}});
      for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        if (form == Master::f32) all.push_back({RestKind::adamw, {form, state}, DType::f32, type});
        if (form == Master::f32) all.push_back({RestKind::update, {form, state}, DType::f32, type});
        if (state == DType::f32) all.push_back({RestKind::update, {form}, type});
        for (const bool nesterov : {false, true}) {
          all.push_back({RestKind::momentum, {form, state}, type, {}, 0.1f, nesterov});
          if (form == Master::f32) all.push_back({RestKind::momentum, {form, state}, type, {}, 0, nesterov});
        }
      }
    }
  for (size_t i = 0, count = all.size(); i < count; ++i)
    if (all[i].pass == RestKind::adamw || all[i].pass == RestKind::momentum) {
      all.push_back(all[i]);
      all.back().forms.gradient = DType::bf16;
    }
  RestValues finite(n), holes = finite;
  holes.g[4] = kInf, holes.g[1000] = NAN, holes.g[1002] = -kInf;
  Lab fast(kFast, 3), slow("reference");
  const Tensor stop[] = {slow.full({1}, 1, DType::i64), fast.full({1}, 1, DType::i64)};
  for (const RestOptions& o : all) {
    Halfwords states[2];
    std::vector<uint32_t> sent[2];
    for (Lab* lab : {&slow, &fast}) {
      RestPass pass(*lab, o.pass == RestKind::momentum ? holes : finite, pieces, o);
      const Halfwords before = halfwords(*lab, pass.state());
      pass.step(stop[lab == &fast]);
      expect_equal(halfwords(*lab, pass.state()), before, o.name() + " skipped");
      sent[lab == &fast] = numbers(*lab, pass.packed);
      pass.step();
      expect_equal(numbers(*lab, pass.packed), sent[lab == &fast], o.name() + " sent");
      pass.step();
      states[lab == &fast] = halfwords(*lab, pass.state());
      EXPECT_NE(states[lab == &fast], before) << o.name();
      EXPECT_EQ(lab->floats(pass.counts), (Floats{3, 3, 301, 3, 3, 0x10001, 0x1p24f, 3}));
    }
    expect_equal(states[1], states[0], o.name() + " state");
    expect_equal(sent[1], sent[0], o.name() + " sent");
    if (o.pass == RestKind::momentum) {
      EXPECT_EQ(sent[1][place(pieces[4].to + 1000 - pieces[4].begin)], 0x7fc00000u) << o.name();  // g is NaN
    }
  }
}

/// Cuts `count` elements from `begin` of a tensor into pieces at random places.
void cut(std::vector<RestPiece>& to, int64_t begin, int64_t count, const Noise& noise, std::mt19937& engine) {
  for (int64_t done = 0, size = 0; done < count; done += size) {
    size = std::min<int64_t>(count - done, engine() % 700);
    to.push_back({begin + done, size, noise.from(done), begin + done});
  }
}

TEST(Rest, BitsDoNotDependOnTheLayout) {
  const int64_t rows = kEmulated ? 21 : 203, columns = 101, n = rows * columns;
  const RestValues in(n);
  const Noise noise{.key = hash64(1, "layout")};
  std::mt19937 engine(11);
  struct Layout {
    std::vector<size_t> order;  // the index in the tensor of each element in memory
    std::vector<RestPiece> pieces = {};
  };
  std::vector<Layout> layouts(4);  // whole; cut; pieces of 70, 1 and 30 columns; these cut once more
  for (int64_t i = 0; i < n; ++i)
    for (const size_t layout : {0, 1}) layouts[layout].order.push_back(place(i));
  layouts[0].pieces = {{0, n, noise}};
  cut(layouts[1].pieces, 0, n, noise, engine);
  for (const auto& [offset, width] : {std::pair<int64_t, int64_t>{31, 70}, {0, 1}, {1, 30}}) {
    const auto begin = static_cast<int64_t>(layouts[2].order.size());
    const Noise part{noise.key, nullptr, 0, width, columns, offset};
    for (int64_t i = 0; i < rows * width; ++i)
      for (const size_t layout : {2, 3})
        layouts[layout].order.push_back(place(i / width * columns + offset + i % width));
    layouts[2].pieces.push_back({begin, rows * width, part, begin});
    cut(layouts[3].pieces, begin, rows * width, part, engine);
  }
  for (const char* kernels : {kFast, "reference"})
    for (const RestKind kind :
         {RestKind::adamw, RestKind::momentum, RestKind::update, RestKind::heads, RestKind::average}) {
      Lab lab(kernels, 3);
      std::vector<uint32_t> want;
      for (size_t layout = 0; layout < layouts.size(); ++layout) {
        const auto& [order, pieces] = layouts[layout];
        RestValues moved = in;
        for (size_t i = 0; i < order.size(); ++i)
          for (const auto values : {&RestValues::w, &RestValues::m, &RestValues::v, &RestValues::g})
            (moved.*values)[i] = (in.*values)[order[i]];
        RestPass pass(lab, moved, pieces, {kind, kSmallest, DType::bf16, {}, 0.1f});
        for (int step = 0; step < 2; ++step) pass.step();
        std::vector<uint32_t> got(4 * order.size());
        const Floats stored = lab.floats({pass.high, pass.m, pass.v, pass.packed});
        for (size_t i = 0; i < got.size(); ++i)
          got[i - i % order.size() + order[i % order.size()]] = bits_of(stored[i]);
        if (layout == 0) want = got;
        expect_equal(got, want, kernels + RestOptions{kind}.name() + " layout " + std::to_string(layout));
      }
    }
}

TEST(Rest, SplitWeightsAreTheF32WeightsInBits) {
  const int64_t n = 1003;
  std::mt19937 engine(2);
  std::vector<RestPiece> pieces;
  cut(pieces, 0, n, {}, engine);
  for (const char* kernels : {kFast, "reference"})
    for (const RestKind kind : {RestKind::adamw, RestKind::momentum, RestKind::update, RestKind::average}) {
      Lab lab(kernels);
      const RestOptions f32{kind, {}, DType::f32, {}, 0.1f},
          split{kind, {Master::split}, DType::f32, {}, 0.1f};
      RestPass whole(lab, RestValues(n), pieces, f32), halves(lab, RestValues(n), pieces, split);
      for (unsigned step = 0; step < 50; ++step) {
        const Floats input = normal(n, 100 + step);
        for (RestPass* pass : {&whole, &halves}) {
          ops::copy_from_host(lab.s, kind == RestKind::update ? pass->packed : pass->g, input.data(), 4 * n);
          pass->step();
        }
        const Floats want = lab.floats(whole.high);
        const Halfwords high = halfwords(lab, {halves.high}), low = halfwords(lab, {halves.low});
        int wrong = 0;
        for (size_t i = 0; i < want.size(); ++i)
          wrong += bits_of(joined({high[i], low[i]})) != bits_of(want[i]) ||
                   !is_nearest(bits_of(want[i]), high[i]);
        ASSERT_EQ(wrong, 0) << kernels << split.name() << " step " << step;
      }
      const auto others = [&](const RestPass& p) { return halfwords(lab, {p.m, p.v, p.packed}); };
      expect_equal(others(halves), others(whole), kernels + split.name());
    }
}

}  // namespace
}  // namespace sherd::test
