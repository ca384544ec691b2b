// Noise of the optimizer's rounding by places in the global parameter.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/fsdp/parameter.h>
#include <sherd/kernels/rest/rest.h>

namespace sherd {

/// Elements [begin, begin + count) of Parameter::shard(), and their noise.
struct NoiseRun {
  int64_t begin = 0, count = 0;
  Noise noise = {};
};

/// Returns the key of a parameter's noise: its model's seed and its name.
uint64_t noise_key(const Parameter& p);

/// Returns runs that cover the elements of a range of the parameter (Parameter::shape()), which begin counts from; see below.
std::vector<NoiseRun> noise_runs(const Parameter& p, ParamRange range, const Tensor& updates);

/// Returns runs that cover elements [begin, begin + count) of shard(), in this order. The indices of their noise are those of
/// the global parameter (Parameter::global_shape()), so an element has the same noise under every layout and cut.
/// @param updates f32 [1] in device memory: Noise::count. It outlives the operations.
std::vector<NoiseRun> noise_runs(const Parameter& p, int64_t begin, int64_t count, const Tensor& updates);

}  // namespace sherd
