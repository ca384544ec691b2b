// Rest forms: weights and optimizer state in 16 bits between steps. ops.h says what holds for all operations.
//
// A value is computed in f32 and rounded when it is stored. Rounding is stochastic and its noise depends on the element alone,
// so the bits of a run do not depend on ranks, strategy or layout.
#pragma once

#include <bit>
#include <cstdint>
#include <utility>

#include <sherd/base/enum_table.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/random/philox.h>

namespace sherd {

/// Form of the weights that an update reads and writes.
enum class Master : uint8_t {
  f32,    // fp32 master weights; where weights are gathered in bf16, a rounded copy beside them
  bf16,   // the gathered bf16 weights alone, stochastically rounded
  split,  // the gathered bf16 weights and the low 16 bits of the fp32 value
};
inline constexpr EnumTable<Master, 3> kMasterNames{"f32", "bf16", "split"};
constexpr const char* name_of(Master m) { return kMasterNames.name(m); }

/// Uses of an element's noise.
enum class NoiseUse : uint8_t {
  weight,
  first_state,   // AdamW's exp_avg, momentum, SOAP's exp_avg
  second_state,  // AdamW's exp_avg_sq, NorMuon's moment, SOAP's exp_avg_sq
};

/// Source of the noise of a segment. Element i has index first + i of a tensor; if width is not 0, index (first
/// + i) / width * pitch + offset + (first + i) % width. Its noise is the 16 bits number index % 8, from the lowest of the first
/// word on, of
///   Philox4x32-7(counter {index / 8 (64 bits), *count, 2}, key).
/// Salmon et al. (SC 2011) found 7 rounds without a failure in BigCrush.
struct Noise {
  uint64_t key = 0;              // hash64(seed, name of the parameter)
  const float* count = nullptr;  // device memory: updates of the parameter, this one included; a whole number
  int64_t first = 0;
  int64_t width = 0, pitch = 0, offset = 0;

  constexpr int64_t index(int64_t i) const {
    return width == 0 ? first + i : (first + i) / width * pitch + offset + (first + i) % width;
  }
  /// Returns the noise of elements from `begin` on.
  constexpr Noise from(int64_t begin) const {
    Noise n = *this;
    n.first += begin;
    return n;
  }
};

inline constexpr uint32_t kFirstStateFactor = 0x9E37, kSecondStateFactor = 0x917D;

/// Returns the noise of a use: a product with an odd number modulo 2^16, so each use is uniform. Any two are points of a lattice
/// whose discrepancy is below 1e-4: whether one value of an element is rounded up tells nothing about another (test
/// Rest.UsesOfANoiseAreUncorrelated). Drawing 16 bits for each use would cost an update more time than it saves.
constexpr uint16_t noise_for(NoiseUse use, uint16_t noise) {
  return static_cast<uint16_t>(noise * (use == NoiseUse::weight        ? 1u
                                        : use == NoiseUse::first_state ? kFirstStateFactor
                                                                       : kSecondStateFactor));
}

constexpr uint16_t noise_at(const Noise& n, int64_t i, NoiseUse use) {
  const auto index = static_cast<uint64_t>(n.index(i)), block = index / 8;
  const std::array<uint32_t, 4> words = philox4x32<7>(
      {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(*n.count), 2},
      {static_cast<uint32_t>(n.key), static_cast<uint32_t>(n.key >> 32)});
  return noise_for(use, static_cast<uint16_t>(words[index % 8 / 2] >> (index % 2 * 16)));
}

inline constexpr uint32_t kQuietNan = 0x7fc00000;

/// Returns the bf16 next to v towards zero, or away from it if noise + the dropped 16 bits reach 2^16: away with the probability
/// that makes the mean v. Exact values, and infinity, stay. NaN becomes kQuietNan.
constexpr bf16 rounded(float v, uint16_t noise) {
  const auto u = std::bit_cast<uint32_t>(v);
  bf16 r;
  r.bits = static_cast<uint16_t>((v == v ? u + noise : kQuietNan) >> 16);
  return r;
}

/// Halves of a split weight. high is v rounded to the nearest bf16, ties away from zero; low the low 16 bits of v. A tie has
/// low 0x8000, and with ties to even both neighbours would be possible values of high: v would be lost. NaN becomes kQuietNan.
struct SplitWeight {
  uint16_t high = 0, low = 0;
};
constexpr SplitWeight split(float v) {
  const uint32_t u = v == v ? std::bit_cast<uint32_t>(v) : kQuietNan;
  return {static_cast<uint16_t>((u + 0x8000u) >> 16), static_cast<uint16_t>(u)};
}
constexpr float joined(SplitWeight w) {
  const uint32_t u = (uint32_t{w.high} << 16) + w.low;
  return std::bit_cast<float>(w.low < 0x8000u ? u : u - 0x10000u);
}

/// Rest forms of an update pass.
struct RestForms {
  Master master = Master::f32;
  DType state = DType::f32;     // or bf16
  DType gradient = DType::f32;  // or bf16; read alone
  /// Returns whether a pass that writes both rounds, and needs noise.
  constexpr bool draws() const { return master == Master::bf16 || state == DType::bf16; }
  auto operator<=>(const RestForms&) const = default;
};

/// Returns the bytes of an element's weight.
constexpr int64_t bytes_of(Master m) { return m == Master::bf16 ? 2 : 4; }

struct SplitArgs {
  float* whole = nullptr;
  uint16_t *high = nullptr, *low = nullptr;
  int64_t count = 0;
};

struct RestKernels {
  static constexpr const char* kName = "rest";
  static const RestKernels* reference();
  static const RestKernels* cpu();
  static const RestKernels* cuda();

  void (*split)(ExecutionContext&, const SplitArgs&);
  void (*join)(ExecutionContext&, const SplitArgs&);
};

namespace ops {

/// high (bf16) and low (16 bits of any meaning, as bf16) receive the halves of `whole` (f32): see SplitWeight.
void split(Stream& s, const Tensor& high, const Tensor& low, const Tensor& whole);
/// The reverse: exact for what split() wrote.
void join(Stream& s, const Tensor& whole, const Tensor& high, const Tensor& low);

/// Weights in any form: f32, or bf16 with `low` undefined, or halves. to (f32) receives their values.
void read_weights(Stream& s, const Tensor& to, const Tensor& weights, const Tensor& low);
/// Returns the values as f32: `weights` itself where they are, else new scratch memory.
Tensor weights_as_f32(Stream& s, const Tensor& weights, const Tensor& low);
/// The weights receive `from` (f32), in bf16 rounded to the nearest, ties to even.
void write_weights(Stream& s, const Tensor& weights, const Tensor& low, const Tensor& from);

}  // namespace ops
}  // namespace sherd
