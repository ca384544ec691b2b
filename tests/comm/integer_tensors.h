// Tensors of small integers, which every dtype holds exactly, so that collectives can be compared with a
// serial model.
#pragma once

#include <vector>

#include <gtest/gtest.h>

#include "comm/ranks.h"

namespace sherd::test {

using Ints = std::vector<int>;

inline Tensor make_tensor(Device& device, DType dtype, const Ints& values) {
  const Tensor t = Tensor::empty(device, {static_cast<int64_t>(values.size())}, dtype, "test");
  with_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < values.size(); ++i) t.data<T>()[i] = to_element<T>(values[i]);
  });
  return t;
}

/// Waits for the stream first.
inline Ints read_tensor(Stream& stream, const Tensor& t) {
  stream.synchronize();
  Ints values(static_cast<size_t>(t.numel()));
  with_dtype(t.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_class_v<T>)
        values[i] = static_cast<int>(static_cast<float>(t.data<T>()[i]));
      else
        values[i] = static_cast<int>(t.data<T>()[i]);
    }
  });
  return values;
}

/// Element i of rank r's data: 0 to 30, so that a sum over 8 ranks is exact in bf16 and fits u8.
inline int value_of(int rank, int64_t i) { return static_cast<int>((rank * 17 + i * 7 + i / 31) % 31); }

/// Elements [begin, begin + count) of a rank's data.
inline Ints data_of(int rank, int64_t begin, int64_t count) {
  Ints v;
  for (int64_t i = begin; i < begin + count; ++i) v.push_back(value_of(rank, i));
  return v;
}

inline Ints poison(int64_t count) { return Ints(static_cast<size_t>(count), 77); }

inline void append(Ints& to, const Ints& from) { to.insert(to.end(), from.begin(), from.end()); }

inline constexpr DType kAllDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64,
                                       DType::i32, DType::i64,  DType::u8};
inline constexpr DType kReducedDTypes[] = {DType::f32, DType::bf16, DType::f16,
                                           DType::f64, DType::i32,  DType::i64};

}  // namespace sherd::test
