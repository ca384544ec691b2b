// Whole tensors of sharded parameters, and comparisons of their bits.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "support/owned_values.h"
#include "support/toy_model.h"

namespace sherd::test {

/// All elements of what every rank has a part of: `local`, laid out as the parameter is. Every rank calls.
inline std::vector<float> whole(const Parameter& p, const Tensor& local, Stream& s) {
  return ops::to_floats(
      s, DTensor::from_layout(p.group().mesh(), p.group().sharded_over(),
                              std::make_shared<ShardLayout>(p.group().layout()), p.index_in_group(), local)
             .full_tensor(s));
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}
inline bool same_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!same_bits(a[i], b[i])) return false;
  return true;
}

/// Returns the names of values whose bits differ or that one of both lacks.
inline std::string other_bits(const OwnedValues::Map& a, const OwnedValues::Map& b) {
  std::string names;
  for (const auto& [name, values] : a)
    if (!b.contains(name) || !same_bits(values, b.at(name))) names += name + "; ";
  for (const auto& [name, values] : b)
    if (!a.contains(name)) names += name + "; ";
  return names;
}

}  // namespace sherd::test
