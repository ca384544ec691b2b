// Elements in their rest form for the reference kernels. Private to kernels.
#pragma once

#include <sherd/kernels/device/reference/access.h>
#include <sherd/kernels/rest/rest.h>

namespace sherd::reference {

/// Weights of a segment.
struct WeightsAt {
  Master form;
  void* high;
  uint16_t* low;

  float get(int64_t i) const {
    if (form == Master::split) return joined({static_cast<uint16_t*>(high)[i], low[i]});
    return static_cast<float>(reference::get({high, form == Master::f32 ? DType::f32 : DType::bf16}, i));
  }
  void put(int64_t i, float v, const Noise& noise, NoiseUse use = NoiseUse::weight) const {
    if (form == Master::f32) {
      static_cast<float*>(high)[i] = v;
    } else if (form == Master::bf16) {
      static_cast<bf16*>(high)[i] = rounded(v, noise_at(noise, i, use));
    } else {
      const SplitWeight w = split(v);
      static_cast<uint16_t*>(high)[i] = w.high;
      low[i] = w.low;
    }
  }
};

/// Optimizer state of a segment: f32, or bf16 with noise.
struct StateAt {
  Ref at;
  float get(int64_t i) const { return static_cast<float>(reference::get(at, i)); }
  void put(int64_t i, float v, const Noise& noise, NoiseUse use) const {
    if (at.dtype == DType::f32)
      at.as<float>()[i] = v;
    else
      at.as<bf16>()[i] = rounded(v, noise_at(noise, i, use));
  }
};

}  // namespace sherd::reference
