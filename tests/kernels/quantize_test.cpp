// State in 8 bits: codes, scales, noise, and what is refused.
#include <sherd/kernels/quantize/quantize.h>

#include "rest_values.h"

namespace sherd::test {
namespace {

constexpr StateCode kCodes[] = {StateCode::linear, StateCode::floating, StateCode::square_root};

/// Rows of unlike sizes, with zeros, and from row 40 on blocks of zeros, of tiny values and of what is not finite.
Floats varied(int64_t rows, int64_t columns, bool positive) {
  Floats v = normal(rows * columns, 5);
  for (int64_t i = 0; i < rows * columns; ++i) {
    float& x = v[place(i)];
    const int64_t row = i / columns;
    x *= std::exp2(static_cast<float>(row % 37) - 18);
    if (i % 11 == 0) x = i % 2 == 0 ? 0.0f : -0.0f;
    if (i % 13 == 0) x *= 1e-6f;
    if (row == 40) x = 0;
    if (row == 41) x *= 1e-30f * 1e-8f;
    if (row == 42 && i % columns == 3) x = kInf;
    if (row == 43 && i % columns == 64) x = std::nanf("");
    if (positive && x != 0) x *= x;
  }
  return v;
}

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<uint32_t> scales, values;
};

/// Quantizes in segments of `piece` elements and reads them back.
Quantized through(const char* kernels, const Floats& values, StateCode code, int64_t block, int64_t piece,
                  Noise noise, bool skips = false) {
  Lab lab(kernels, 3);
  const auto n = static_cast<int64_t>(values.size());
  const Tensor from = lab.tensor({n}, values), codes = lab.full({n}, 0, DType::u8),
               scales = lab.full({n / block}, 0), back = lab.empty({n}), count = lab.full({1}, 7);
  const bool draws = noise.count != nullptr;
  if (draws) noise.count = count.data<float>();
  std::vector<BlockSegment> writes, reads;
  for (int64_t at = 0; at < n; at += piece) {
    const int64_t size = std::min(piece, n - at);
    writes.push_back({codes.data<uint8_t>() + at, scales.data<float>() + at / block, from.data<float>() + at,
                      size, block, code, draws ? noise.from(at) : Noise{}});
    reads.push_back(writes.back());
    reads.back().values = back.data<float>() + at;
  }
  ops::quantize(lab.s, writes, skips ? lab.full({1}, 1, DType::i64) : Tensor());
  ops::dequantize(lab.s, reads);
  Quantized q;
  q.codes.resize(values.size());
  ops::copy_to_host(lab.s, q.codes.data(), codes);
  q.scales = numbers(lab, scales);
  q.values = numbers(lab, back);
  return q;
}

TEST(Quantize, KernelsHaveTheBitsOfTheFormula) {
  const float updates = 7;
  const int64_t rows = 45, columns = 768;
  for (const StateCode code : kCodes)
    for (const int64_t block : {64, 128, 256})
      for (const bool draws : {false, true}) {
        const Floats values = varied(rows, columns, code == StateCode::square_root);
        // As a piece of 3 over the columns.
        const Noise noise{hash64(1, "w"), draws ? &updates : nullptr, 0, columns, 3 * columns, columns};
        Quantized want;
        with_code(code, [&](auto c) {
          for (int64_t i = 0; i < rows * columns; ++i) {
            const auto begin = values.begin() + i / block * block;
            float largest = 0;
            for (auto v = begin; v != begin + block; ++v)
              largest = std::isnan(*v) ? *v : std::max(std::abs(*v), largest);
            if (code == StateCode::square_root) largest = std::sqrt(largest);
            for (auto v = begin; v != begin + block; ++v)
              if (std::isnan(*v)) largest = *v;
            const BlockScale scale = block_scale(code, largest);
            if (i % block == 0) want.scales.push_back(bits_of(scale.scale));
            want.codes.push_back(quantized<c()>(values[place(i)], scale.inverse,
                                                draws ? noise_at(noise, i, use_of(code)) : kToNearest));
            want.values.push_back(bits_of(dequantized<c()>(want.codes.back(), scale.scale)));
            if (std::isnan(float_of(want.values.back()))) want.values.back() = 0x7fc00000u;
          }
        });
        for (const char* kernels : {"reference", kFast})
          for (const int64_t piece : {rows * columns, columns, 5 * block}) {
            const std::string what = std::string(kernels) + " " + name_of(code) + " " + std::to_string(block);
            const Quantized got = through(kernels, values, code, block, piece, noise);
            expect_equal(got.codes, want.codes, what + " codes");
            expect_equal(got.scales, want.scales, what + " scales");
            expect_equal(got.values, want.values, what + " values");
          }
        const Quantized kept = through(kFast, values, code, block, columns, noise, true);
        EXPECT_EQ(kept.codes, std::vector<uint8_t>(values.size()));
        EXPECT_EQ(kept.scales, std::vector<uint32_t>(values.size() / place(block)));
      }
}

TEST(Quantize, EightBitFloatsAreThoseOfTheirDefinition) {
  std::vector<float> all;
  for (uint32_t code = 0; code < 127; ++code) {
    f8_e4m3 f;
    f.bits = static_cast<uint8_t>(code);
    all.push_back(static_cast<float>(f));
    EXPECT_EQ(float8_value(code), all.back()) << code;
    EXPECT_EQ(f8_e4m3(all.back()).bits, code);
    EXPECT_EQ(f8_e4m3(-all.back()).bits, code | 0x80);
  }
  EXPECT_EQ(all[1], 0x1p-9f);
  EXPECT_EQ(all[8], 0x1p-6f);
  EXPECT_EQ(all[126], 448);
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    EXPECT_LT(all[i], all[i + 1]);
    const float middle = (all[i] + all[i + 1]) / 2;
    EXPECT_EQ(f8_e4m3(std::nextafter(middle, 0.0f)).bits, i);
    EXPECT_EQ(f8_e4m3(std::nextafter(middle, kInf)).bits, i + 1);
    EXPECT_EQ(f8_e4m3(middle).bits, i % 2 == 0 ? i : i + 1);  // ties to even
    EXPECT_EQ(float8_code(middle * 0.99999f, kToNearest), i);
    EXPECT_EQ(float8_code(middle, kToNearest), i + 1);
    EXPECT_EQ(float8_code(all[i], 0xffff), i);  // exact values stay
  }
  for (const float v : {465.0f, 1e30f, kInf, std::nanf("")})
    EXPECT_TRUE(std::isnan(static_cast<float>(f8_e4m3(v))));
}

// Values of one block, each rounded with all noises of some updates: the mean error is 0 within 5 standard deviations.
TEST(Quantize, RoundingIsUnbiased) {
  Floats values = normal(256, 3);
  for (const StateCode code : kCodes)
    with_code(code, [&](auto c) {
      constexpr bool kRoot = c() == StateCode::square_root;
      float largest = 0;
      for (float& v : values) largest = std::max(largest, kRoot ? std::sqrt(v *= v) : std::abs(v));
      const BlockScale scale = block_scale(code, largest);
      double sum = 0, squares = 0;
      int64_t count = 0;
      for (float updates = 1; updates <= 200; ++updates) {
        const Noise noise{hash64(1, "w"), &updates};
        for (int64_t i = 0; i < 256; ++i, ++count) {
          const float v = values[place(i)];
          const float back = dequantized<c()>(
              quantized<c()>(v, scale.inverse, noise_at(noise, i, use_of(code))), scale.scale);
          // The root is what is unbiased.
          const double error = (kRoot ? std::sqrt(back) - std::sqrt(v) : back - v) / scale.scale;
          sum += error, squares += error * error;
        }
      }
      EXPECT_LT(std::abs(sum), 5 * std::sqrt(squares))
          << name_of(code) << ' ' << sum / static_cast<double>(count);
    });
}

// What is read back and rounded to nearest again has the same codes and scales, also where noise has rounded it.
TEST(Quantize, ValuesThatAreReadBackHaveTheSameCodes) {
  const float updates = 3;
  for (const StateCode code : kCodes)
    for (const bool draws : {false, true}) {
      const Floats values = varied(40, 512, code == StateCode::square_root);
      const Noise noise{hash64(1, "w"), draws ? &updates : nullptr};
      const Quantized once = through(kFast, values, code, 128, 40 * 512, noise);
      Floats back;
      for (const uint32_t u : once.values) back.push_back(float_of(u));
      const Quantized twice = through(kFast, back, code, 128, 40 * 512, {});
      expect_equal(twice.codes, once.codes, std::string(name_of(code)) + " codes");
      expect_equal(twice.scales, once.scales, std::string(name_of(code)) + " scales");
    }
}

TEST(Quantize, BlocksFollowTheShape) {
  EXPECT_EQ(state_block({16, 256}), 256);
  EXPECT_EQ(state_block({64, 64}), 64);
  EXPECT_EQ(state_block({63, 64}), 0);  // 4,032 elements
  EXPECT_EQ(state_block({8, 100, 384}), 128);
  EXPECT_EQ(state_block({100, 2880}), 64);
  EXPECT_EQ(state_block({100, 96}), 0);
  EXPECT_EQ(state_block({65536}), 0);
}

TEST(Quantize, SegmentsOfPartBlocksAreRefused) {
  Lab lab;
  const Tensor codes = lab.full({512}, 0, DType::u8), scales = lab.full({8}, 0), values = lab.full({512}, 1);
  const auto message = [&](BlockSegment s) {
    try {
      ops::quantize(lab.s, {&s, 1});
    } catch (const ShapeMismatch& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const BlockSegment good{codes.data<uint8_t>(), scales.data<float>(), values.data<float>(), 512, 64};
  EXPECT_EQ(message(good), "");
  BlockSegment bad = good;
  bad.count = 500;
  EXPECT_THAT(message(bad), testing::HasSubstr("500 elements, not whole blocks of 64"));
  bad = good, bad.block = 32;
  EXPECT_THAT(message(bad), testing::HasSubstr("blocks of 32, must be of 64, 128 or 256"));
  bad = good, bad.noise.first = 32;
  EXPECT_THAT(message(bad), testing::HasSubstr("its noise does not begin with a block of 64"));
  bad = good, bad.scales = nullptr;
  EXPECT_THAT(message(bad), testing::HasSubstr("codes, scales or values are null"));
}

}  // namespace
}  // namespace sherd::test
