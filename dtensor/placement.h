// Placement of a tensor along one mesh dimension.
#pragma once

#include <string>
#include <vector>

namespace sherd {

/// Replicate: all of it. Shard(d): one piece of tensor dimension d. Partial: one term of a pending sum.
struct Placement {
  enum class Kind { replicate, shard, partial };
  Kind kind = Kind::replicate;
  int dim = 0;  // of the tensor, for shard

  bool is_replicate() const { return kind == Kind::replicate; }
  bool is_shard() const { return kind == Kind::shard; }
  bool is_partial() const { return kind == Kind::partial; }
  friend bool operator==(const Placement&, const Placement&) = default;
};

inline Placement Replicate() { return {Placement::Kind::replicate, 0}; }
inline Placement Shard(int dim) { return {Placement::Kind::shard, dim}; }
inline Placement Partial() { return {Placement::Kind::partial, 0}; }

/// "R", "S(0)", "P"
inline std::string to_string(Placement p) {
  return p.is_replicate() ? "R" : p.is_partial() ? "P" : "S(" + std::to_string(p.dim) + ")";
}
/// "(R, S(0))"
inline std::string to_string(const std::vector<Placement>& ps) {
  std::string s = "(";
  for (size_t i = 0; i < ps.size(); ++i) s += (i ? ", " : "") + to_string(ps[i]);
  return s + ")";
}

}  // namespace sherd
