// Inputs of golden cases that the files do not store.
#pragma once

#include <cstdint>
#include <vector>

namespace sherd::test {

/// values() of tests/golden/make_attention.py and make_balancing.py: exact in f32, between -2 and 2.
inline std::vector<float> golden_values(int64_t count, int64_t salt) {
  std::vector<float> v;
  for (int64_t i = 0; i < count; ++i) v.push_back(static_cast<float>((i * 73 + salt * 31) % 127 - 63) / 32);
  return v;
}

}  // namespace sherd::test
