// CUB's radix sort of pairs, imitated on the host, in place of the toolkit's header of this name. See fake.h.
#pragma once

#include <cuda_host/fake.h>
#include <cuda_host/late.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace cub {

struct DeviceRadixSort {
  /// Keys are signed. CUB's first call, without storage, only asks for the size of the storage.
  template <class Value>
  static cudaError_t SortPairs(void* storage, size_t& bytes, const int32_t* keys, int32_t* sorted_keys,
                               const Value* values, Value* sorted_values, int count, int begin_bit,
                               int end_bit, cudaStream_t stream) {
    if (const int code = cuda_host::enter("cub::DeviceRadixSort::SortPairs"))
      return static_cast<cudaError_t>(code);
    const size_t needed = 1 + static_cast<size_t>(count) * (sizeof(int32_t) + sizeof(Value));
    if (storage == nullptr) {
      bytes = needed;
      return cudaSuccess;
    }
    if (bytes < needed || count < 0 || begin_bit < 0 || begin_bit >= end_bit || end_bit > 32)
      return cudaErrorInvalidValue;
    cuda_host::issue_on(stream, [=] {
      std::memset(storage, 0x7f, needed);
      std::vector<std::pair<uint32_t, int>> order;
      for (int i = 0; i < count; ++i) {
        const uint32_t key = static_cast<uint32_t>(keys[i]) ^ 0x80000000u;
        order.emplace_back(key << (32 - end_bit) >> (32 - end_bit + begin_bit), i);
      }
      std::sort(order.begin(), order.end());  // equal bits by their places
      for (int j = 0; j < count; ++j) {
        const int from = order[static_cast<size_t>(j)].second;
        sorted_keys[j] = keys[from];
        sorted_values[j] = values[from];
      }
    });
    return cudaSuccess;
  }
};

}  // namespace cub
