// Stable sort of (key, place) pairs that always takes the same steps. Private to CUDA kernels.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/stream.h>

namespace sherd::cuda {

/// Keys and the places they came from; both of `count` elements.
struct Pairs {
  uint32_t* keys = nullptr;
  uint32_t* places = nullptr;
};

/// Device memory that sort_pairs needs beside its arrays.
int64_t sort_scratch_bytes(int64_t count);

/// Sorts `pairs` by key, equal keys in their order; `spare` is overwritten. Keys are at most `largest`.
/// Returns the one of the two that holds the result. count is below 2^31.
Pairs sort_pairs(ExecutionContext& context, Pairs pairs, Pairs spare, int64_t count, uint32_t largest,
                 void* scratch);

}  // namespace sherd::cuda
