// What tests of rest forms share: bits of tensors, their comparison, and passes with their memory.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sherd/kernels/qk_clip/qk_clip.h>

#include "lab.h"

namespace sherd::test {

inline constexpr NoiseUse kUses[] = {NoiseUse::weight, NoiseUse::first_state, NoiseUse::second_state};
inline constexpr uint32_t kFactors[] = {1, 0x9E37, 0x917D};  // of the uses
inline constexpr RestForms kSmallest{Master::bf16, DType::bf16};
inline constexpr int64_t kOne = 1;

inline float float_of(uint32_t u) { return std::bit_cast<float>(u); }
inline uint32_t bits_of(float v) { return std::bit_cast<uint32_t>(v); }
inline float float_of_high(uint32_t high) { return float_of(high << 16); }
inline size_t place(int64_t i) { return static_cast<size_t>(i); }

/// Returns the content of tensors, 16 bits at a time.
using Halfwords = std::vector<uint16_t>;
inline Halfwords halfwords(Lab& lab, const std::vector<Tensor>& tensors) {
  Halfwords all;
  for (const Tensor& t : tensors) {
    const size_t begin = all.size();
    all.resize(begin + place(t.nbytes() / 2));
    ops::copy_to_host(lab.s, all.data() + begin, t);
  }
  return all;
}
/// Returns the bits of floats, with one NaN for all NaNs.
inline std::vector<uint32_t> numbers(Lab& lab, const Tensor& t) {
  Floats all = lab.floats(t);
  for (float& v : all) v = std::isnan(v) ? float_of(0x7fc00000u) : v;
  return bits(all);
}
template <class T>
void expect_equal(const std::vector<T>& got, const std::vector<T>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  const auto [a, b] = std::mismatch(got.begin(), got.end(), want.begin());
  if (a != got.end()) ADD_FAILURE() << what << ": word " << a - got.begin() << " is " << *a << ", not " << *b;
}

/// A segment of a pass, in elements of its tensors.
struct RestPiece {
  int64_t begin = 0, count = 0;
  Noise noise = {};
  int64_t to = 0;  // in packed
  float updates = 1;
  bool sends = true;  // packs, has a copy, has a factor other than 1
};

struct RestValues {
  Floats w, m, v, g;
  explicit RestValues(int64_t n) : w(normal(n, 1)), m(normal(n, 2)), v(normal(n, 3)), g(normal(n, 4)) {
    for (float& x : v) x *= x;
  }
};

enum class RestKind { adamw, momentum, update, heads, average };
struct RestOptions {
  RestKind pass = RestKind::adamw;
  RestForms forms = {};
  DType payload = DType::f32;  // of packed
  std::optional<DType> copies = {};
  float l2 = 0;
  bool nesterov = true;
  std::string name() const {
    return std::string(1, "amuhe"[static_cast<int>(pass)]) + " " + name_of(forms.master) + " " +
           name_of(forms.state) + " " + name_of(forms.gradient) + " " + name_of(payload) +
           (copies ? name_of(*copies) : "");
  }
};

/// A pass with its memory. No tensor begins at a multiple of 16 bytes.
struct RestPass {
  RestPass(Lab& l, const RestValues& in, std::vector<RestPiece> p, RestOptions options)
      : lab(l), o(options), pieces(std::move(p)) {
    const int64_t n = static_cast<int64_t>(in.w.size()), size = static_cast<int64_t>(pieces.size());
    const auto tensor = [&](const Floats& x, DType type) { return lab.shifted(lab.tensor({n}, x, type)); };
    Floats updates;
    for (const RestPiece& piece : pieces) updates.push_back(piece.updates);
    counts = lab.tensor({size}, updates);
    for (size_t i = 0; i < updates.size(); ++i) pieces[i].noise.count = counts.data<float>() + i;
    biases = lab.full({size, 2}, 1);
    factors = lab.tensor({2}, {1, 0.77f});
    high = tensor(in.w, o.forms.master == Master::f32 ? DType::f32 : DType::bf16);
    if (o.forms.master == Master::split) {
      low = lab.shifted(high);
      ops::split(lab.s, high, low, tensor(in.w, DType::f32));
    }
    m = tensor(in.m, o.forms.state);
    v = tensor(in.v, o.forms.state);
    g = tensor(in.g, o.forms.gradient);
    packed = tensor(in.g, o.payload);
    if (o.copies) copy = tensor(in.g, *o.copies);
  }

  /// Runs the pass once. With `skip`, the state must stay; factors of heads are 1 then.
  void step(const Tensor& skip = {}) {
    ops::adamw_count(lab.s, counts, o.pass == RestKind::adamw ? biases : Tensor(), kRates, skip);
    std::vector<AdamWSegment> adam;
    std::vector<MomentumSegment> momentum;
    std::vector<UpdateSegment> update;
    std::vector<HeadScaleSegment> heads;
    std::vector<AverageSegment> averages;
    for (const RestPiece& p : pieces) {
      const auto at = [&](const Tensor& t) {
        return t.defined() ? static_cast<char*>(t.raw()) + p.begin * size_of(t.dtype()) : nullptr;
      };
      char *const w = at(high), *const to = p.sends ? at(copy) : nullptr;
      auto* const low_half = static_cast<uint16_t*>(static_cast<void*>(at(low)));
      const void* const gradient = at(g);
      const float* const factor = factors.data<float>() + (p.sends && !skip.defined() ? 1 : 0);
      const auto index = static_cast<int64_t>(adam.size());
      adam.push_back({w, at(m), at(v), gradient, to, p.count, 0.1, index, low_half, p.noise});
      momentum.push_back({at(m), gradient, w, p.count, p.sends ? p.to : -1, low_half, p.noise});
      update.push_back({w, p.count, p.to, 0.99f, -0.02f, to, low_half, p.noise});
      heads.push_back({w, p.count, factor, low_half, p.noise});
      averages.push_back({at(m), w, p.count, low_half, p.noise});
    }
    const DType type = o.copies.value_or(DType::f32);
    if (o.pass == RestKind::adamw) ops::adamw(lab.s, adam, kRates, biases, type, skip, {}, o.forms);
    if (o.pass == RestKind::momentum)
      ops::muon_momentum(lab.s, packed, momentum, 0.9f, o.nesterov, o.l2, skip, {}, o.forms);
    if (o.pass == RestKind::update) ops::muon_update(lab.s, update, packed, skip, type, o.forms);
    if (o.pass == RestKind::heads) ops::scale_heads(lab.s, heads, o.forms.master);
    if (o.pass == RestKind::average) ops::average(lab.s, averages, 0.9, skip, o.forms);
  }
  /// Returns all that a skipped pass keeps, the weights last.
  std::vector<Tensor> state() const {
    std::vector<Tensor> all = {m, v, high};
    if (copy.defined()) all.insert(all.begin(), copy);
    if (low.defined()) all.push_back(low);
    return all;
  }

  static constexpr ops::AdamWRates kRates{.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
  Lab& lab;
  RestOptions o;
  std::vector<RestPiece> pieces;
  Tensor counts, biases, factors, high, low, m, v, g, packed, copy;
};

}  // namespace sherd::test
