#include <sherd/kernels/dion/dion.h>

#include <cmath>
#include <tuple>

#include "lab.h"

namespace sherd::test {
namespace {

/// The slots of `kept` rows of matrices [batch, rows, cols].
std::vector<int32_t> slots_of(Lab& lab, const Tensor& in, int64_t kept) {
  const Shape shape = {in.size(0), in.size(1)};
  const Tensor slots = lab.empty(shape, DType::i32), norms = lab.empty(shape, DType::f64);
  ops::dion_choose(lab.s, slots, norms, in, kept);
  std::vector<int32_t> host(static_cast<size_t>(slots.numel()));
  ops::copy_to_host(lab.s, host.data(), slots);
  return host;
}

TEST(Dion, ChoosesTheRowsOfTheLargestL1Norms) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Tensor in =
        lab.tensor({2, 4, 2}, {3, -3, 1, 1, 0, -9, 4, 2,  // L1 norms 6 2 9 6, L2 norms otherwise
                               0, 0, 0, 0, NAN, 1, 5, 5});
    EXPECT_EQ(slots_of(lab, in, 1), (std::vector<int32_t>{-1, -1, 0, -1, -1, -1, 0, -1}));
    EXPECT_EQ(slots_of(lab, in, 2),
              (std::vector<int32_t>{0, -1, 1, -1, -1, -1, 0, 1}));  // of equal ones the first
    EXPECT_EQ(slots_of(lab, in, 3), (std::vector<int32_t>{0, -1, 1, 2, 0, -1, 1, 2}));
    EXPECT_EQ(slots_of(lab, in, 4), (std::vector<int32_t>{0, 1, 2, 3, 0, 1, 2, 3}));
  }
}

TEST(Dion, TakesAndPutsTheRowsOfTheReference) {
  Lab fast(kFast, 2), slow("reference");
  for (const auto& [batch, rows, cols] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {3, 130, 70}, {2, 67, 300}})
    for (const int64_t kept : {int64_t{1}, (rows + 3) / 4, rows}) {
      std::vector<int32_t> slots[2];
      Floats taken[2], back[2];
      for (int i = 0; i < 2; ++i) {
        Lab& lab = i == 0 ? fast : slow;
        const Tensor in = lab.random({batch, rows, cols}, 4), out = lab.full({batch, rows, cols}, 7),
                     chosen = lab.full({batch, kept, cols}, 8);
        slots[i] = slots_of(lab, in, kept);
        const Tensor s = lab.empty({batch, rows}, DType::i32);
        ops::copy_from_host(lab.s, s, slots[i].data(), s.nbytes());
        ops::dion_take(lab.s, chosen, in, s);
        ops::dion_put(lab.s, out, chosen, s);
        taken[i] = lab.floats(chosen);
        back[i] = lab.floats(out);
      }
      EXPECT_EQ(slots[0], slots[1]) << rows << " " << kept;
      EXPECT_EQ(bits(taken[0]), bits(taken[1])) << rows << " " << kept;
      EXPECT_EQ(bits(back[0]), bits(back[1])) << rows << " " << kept;
    }
}

TEST(Dion, KeepsWhatHasNoResult) {
  for (const DType payload : {DType::f32, DType::bf16, DType::f16}) {
    Floats got[2];
    for (int i = 0; i < 2; ++i) {
      Lab lab(i == 0 ? kFast : "reference", 2);
      Floats results = normal(40009, 5);
      for (size_t k = 0; k < results.size(); k += 3) results[k] = 0;
      const Tensor r = lab.tensor({40009}, results, payload), buffer = lab.random({40000}, 6),
                   skip = lab.full({1}, 1, DType::i64);
      const std::vector<DionSegment> segments = {{buffer.data<float>(), 30001, 9},
                                                 {buffer.data<float>() + 30001, 0, 0},
                                                 {buffer.data<float>() + 30001, 5, 2}};
      const Floats before = lab.floats(buffer);
      ops::dion_keep(lab.s, segments, r, 1.25f, skip);
      EXPECT_EQ(bits(lab.floats(buffer)), bits(before)) << "skip";
      ops::dion_keep(lab.s, segments, r, 1.25f);
      got[i] = lab.floats(buffer);
      EXPECT_EQ(got[i][0], before[0] * 1.25f);
      EXPECT_EQ(got[i][1], before[1]);
      EXPECT_EQ(got[i][39999], before[39999]);
    }
    EXPECT_EQ(bits(got[0]), bits(got[1])) << name_of(payload);
  }
}

TEST(Dion, RefusesWhatDoesNotFit) {
  Lab lab;
  const Tensor in = lab.full({2, 3, 4}, 1), slots = lab.empty({2, 3}, DType::i32),
               norms = lab.empty({2, 3}, DType::f64), chosen = lab.full({2, 2, 5}, 0);
  EXPECT_THROW(ops::dion_choose(lab.s, slots, norms, in, 0), InvalidArgument);
  EXPECT_THROW(ops::dion_choose(lab.s, slots, norms, in, 4), InvalidArgument);
  EXPECT_THROW(ops::dion_choose(lab.s, norms, slots, in, 1), ShapeMismatch);
  EXPECT_THROW(ops::dion_take(lab.s, chosen, in, slots), ShapeMismatch);
  const DionSegment far{in.data<float>(), 4, 21};
  EXPECT_THROW(ops::dion_keep(lab.s, {&far, 1}, in, 1), ShapeMismatch);
}

}  // namespace
}  // namespace sherd::test
