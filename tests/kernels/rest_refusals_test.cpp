// Rest forms in passes of whole matrices, and what is refused.
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

TEST(Rest, RowMomentsAreTheSameAlongARow) {
  const int64_t rows = 37, columns = 113, n = rows * columns;
  const Floats values = normal(n, 1, 0.2f), scale = normal(rows, 2), moment = RestValues(rows).v;
  const float updates = 6;
  const Noise noise{.key = hash64(4, "rows"), .count = &updates};
  Halfwords first_records;
  Floats first_results;
  for (const char* kernels : {"reference", kFast})
    for (const int64_t left : {0, 40})  // all columns, or the later ones with the same noise
      for (const int64_t piece : {n, int64_t{1}, int64_t{57}, int64_t{1000}}) {
        Lab lab(kernels, 3);
        const int64_t width = columns - left, size = rows * width;
        const Tensor x = lab.shifted(lab.tensor({size}, Floats(values.begin(), values.begin() + size))),
                     v = lab.shifted(lab.full({size}, 0, DType::bf16)), count = lab.full({1}, updates),
                     given_scales = lab.tensor({rows}, scale), given = lab.tensor({rows}, moment),
                     scales = lab.empty({rows}), moments = lab.empty({rows}),
                     records = lab.empty({rows, RowRecord::kWords}, DType::i64);
        const Noise drawn{noise.key, count.data<float>()};
        Halfwords want;
        for (int64_t i = 0; i < size; ++i) {
          const uint16_t of_row = noise_at(noise, i / width, NoiseUse::second_state);
          want.push_back(sherd::rounded(moment[place(i / width)], of_row).bits);
        }
        std::vector<RowSegment> segments;
        for (int64_t first = 0; first < size; first += piece)
          segments.push_back({x.data<float>() + first, v.data<bf16>() + first, std::min(piece, size - first),
                              first, width, 0, left == 0, DType::bf16, drawn});
        const RowMatrix matrix{0, rows, width, 10};
        for (const bool skips : {true, false, false}) {
          ops::fill(lab.s, records, 0);
          ops::row_records(lab.s, records, segments);
          ops::row_scales(lab.s, scales, moments, records, {&matrix, 1}, 0.75, 1e-8);
          const Tensor skip = skips ? lab.full({1}, 1, DType::i64) : Tensor();
          ops::scale_rows(lab.s, segments, given_scales, given, skip);
          expect_equal(halfwords(lab, {v}), skips ? Halfwords(place(size)) : want, "moments");
        }
        if (left != 0) continue;
        const Halfwords result = halfwords(lab, {records, x});
        if (first_records.empty()) first_records = result, first_results = lab.floats({scales, moments});
        expect_equal(result, first_records, kernels + std::string(" pieces of ") + std::to_string(piece));
        expect_close(lab.floats({scales, moments}), first_results, 4e-7);  // sums in another order
      }
}

TEST(Rest, SoapRoundsItsMoments) {
  constexpr int64_t kSide = 8, kSize = kSide * kSide;
  const int64_t each = soap_state_elements(kSide, kSide, true, true);
  Floats want;
  Halfwords first_words;
  for (const char* kernels : {"reference", "reference", kFast}) {
    Lab lab(kernels, 3);
    const Tensor memory = lab.full({2 * each}, 0), first = lab.shifted(lab.full({2 * kSize}, 0, DType::bf16)),
                 second = lab.shifted(first), status = lab.empty({2}, DType::i32);
    Floats outs;
    for (unsigned step = 1; step <= 5; ++step) {  // the last is skipped
      const Tensor skip = lab.full({1}, step == 5, DType::i64);
      std::vector<SoapMatrix> matrices;
      for (uint64_t i = 0; i < 2; ++i) {
        SoapState state = soap_layout(memory.data<float>() + i * place(each), kSide, kSide, true, true);
        state.exp_avg = state.exp_avg_sq = nullptr;
        matrices.push_back({state, skip.data<int64_t>(), first.data<bf16>() + i * kSize,
                            second.data<bf16>() + i * kSize, i});
      }
      const Tensor in = lab.random({2, kSide, kSide}, step), out = lab.full({2, kSide, kSide}, 7);
      const Halfwords before = halfwords(lab, {first, second, memory});
      ops::soap_step(lab.s, out, in, status, matrices, {.beta1 = 0.75, .eps = 1e-3});
      if (step == 5) expect_equal(halfwords(lab, {first, second, memory}), before, "skipped");
      for (const float v : lab.floats(out)) outs.push_back(v);
      if (step != 2) continue;
      Halfwords exact;  // first moments: 0.25 of the gradients
      const float updates = 2;
      for (const float g : normal(2 * kSize, step)) {
        const int64_t i = static_cast<int64_t>(exact.size());
        const Noise noise{.key = static_cast<uint64_t>(i / kSize), .count = &updates};
        exact.push_back(sherd::rounded(0.25f * g, noise_at(noise, i % kSize, NoiseUse::first_state)).bits);
      }
      expect_equal(halfwords(lab, {first}), exact, kernels + std::string(" first moments"));
    }
    const Halfwords now = halfwords(lab, {first, second});
    if (want.empty()) want = outs, first_words = now;
    if (kernels != kFast) expect_equal(now, first_words, "again");
    if (kernels != kFast) expect_equal(bits(outs), bits(want), "again");
    // Outputs of the second step have moments before they are rounded. Later a moment may be rounded another way.
    expect_close({outs.begin(), outs.begin() + 4 * kSize}, {want.begin(), want.begin() + 4 * kSize},
                 0x1p-24 / 1e-3 * 8);
    expect_close(outs, want, 0x1p-6);
  }
}

TEST(Rest, ChecksReadBf16) {
  const int64_t each = kEmulated ? 503 : 7003;
  for (const char* kernels : {kFast, "reference"})
    for (const float wrong : {NAN, kInf, -kInf})
      for (const auto& [clears, skips] : {std::pair(false, 0), {true, 0}, {true, 1}}) {
        Lab lab(kernels, 3);
        Floats values = normal(3 * each, 1);
        values[place(each - 1)] = values[place(2 * each)] = wrong;  // in the first and the last segment
        const Tensor v = lab.shifted(lab.tensor({3 * each}, values, DType::bf16)),
                     skip = lab.full({1}, skips, DType::i64), status = lab.ints({4}, {0, 2, 0, 0});
        std::vector<CheckedSegment> segments;
        for (int64_t i = 0; i < 3; ++i)
          segments.push_back({v.data<bf16>() + i * each, each, status.data<int32_t>() + i});
        const Halfwords want = clears && skips == 0 ? Halfwords(place(3 * each)) : halfwords(lab, {v});
        ops::check_finite(lab.s, segments, MatrixStatus::bad_result, clears, skip, DType::bf16);
        std::vector<int32_t> found(4);
        ops::copy_to_host(lab.s, found.data(), status);
        const int32_t bad = skips == 1 ? 0 : static_cast<int32_t>(MatrixStatus::bad_result);
        EXPECT_EQ(found, (std::vector<int32_t>{bad, 2, bad, 0})) << kernels << wrong;
        expect_equal(halfwords(lab, {v}), want, kernels);
      }
}

TEST(Rest, MissingMemoryIsRefused) {
  Lab lab;
  const Tensor x = lab.full({4}, 1), h = lab.full({4}, 1, DType::bf16);
  const auto no_low = [](RestPass& p) { p.low = Tensor(); };
  const auto no_count = [](RestPass& p) { p.pieces[0].noise.count = nullptr; };
  const auto with_copy = [&](RestPass& p) { p.copy = h, p.o.copies = DType::bf16; };
  const auto as_f16 = [](RestPass& p) { p.o.forms.state = DType::f16; };
  const auto no_elements = [](RestPass& p) {
    p.low = Tensor(), p.pieces[0].noise.count = nullptr, p.pieces[0].count = 0;
  };
  const auto refused = [&](const RestOptions& o, const std::function<void(RestPass&)>& change) {
    RestPass pass(lab, RestValues(1), {{0, 1}}, o);
    change(pass);
    try {
      pass.step();
    } catch (const ShapeMismatch&) {
      return true;
    }
    return false;
  };
  for (const RestKind pass : {RestKind::adamw, RestKind::update, RestKind::heads}) {
    EXPECT_TRUE(refused({pass, {Master::split}}, no_low));
    EXPECT_TRUE(refused({pass, kSmallest}, no_count));
    for (const Master form : {Master::bf16, Master::split}) {
      EXPECT_FALSE(refused({pass, {form, DType::bf16}}, no_elements));
      EXPECT_EQ(refused({pass, {form}}, with_copy), pass != RestKind::heads);
    }
  }
  EXPECT_TRUE(refused({RestKind::momentum, {Master::split}, DType::f32, {}, 0.1f}, no_low));
  EXPECT_FALSE(refused({RestKind::momentum, {Master::split}}, no_low));  // reads no weights
  EXPECT_FALSE(
      refused({RestKind::momentum, {Master::bf16}, DType::f32, {}, 0.1f}, no_count));  // rounds nothing
  EXPECT_TRUE(refused({RestKind::average, {Master::split}}, no_low));
  EXPECT_FALSE(refused({RestKind::average, {Master::bf16}}, no_count));  // rounds nothing
  for (const RestKind pass : {RestKind::adamw, RestKind::momentum, RestKind::average}) {
    EXPECT_TRUE(refused({pass, {Master::f32, DType::bf16}}, no_count));
    EXPECT_TRUE(refused({pass}, as_f16));
  }
  for (const DType dtype : {DType::f16, DType::bf16}) {  // no count
    const RowSegment row{x.data<float>(), h.raw(), 1, 0, 1, 0, true, dtype};
    EXPECT_THROW(ops::scale_rows(lab.s, {&row, 1}, x, x), ShapeMismatch);
  }
  EXPECT_THROW(ops::check_finite(lab.s, {}, MatrixStatus::bad_result, false, {}, DType::f16), ShapeMismatch);
  EXPECT_THROW(ops::split(lab.s, h, h.flat(0, 3), x), ShapeMismatch);
  EXPECT_THROW(ops::join(lab.s, x, h, x), ShapeMismatch);
}

}  // namespace
}  // namespace sherd::test
