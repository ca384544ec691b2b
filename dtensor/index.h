// Index spaces as types: an index into a buffer is not an index into a parameter.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <sherd/kernels/device/shape.h>

namespace sherd {

/// Position in the index space named by Tag. Differences are plain counts.
template <class Tag>
struct Index {
  int64_t value = 0;
  Index() = default;
  explicit constexpr Index(int64_t v) : value(v) {}
  friend constexpr Index operator+(Index i, int64_t n) { return Index(i.value + n); }
  friend constexpr Index operator-(Index i, int64_t n) { return Index(i.value - n); }
  friend constexpr int64_t operator-(Index a, Index b) { return a.value - b.value; }
  friend constexpr auto operator<=>(Index, Index) = default;
};

/// Half-open interval [begin, end).
template <class Tag>
struct Range {
  Index<Tag> begin, end;
  int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

template <class Tag>
[[nodiscard]] Range<Tag> intersect(Range<Tag> a, Range<Tag> b) {
  const auto begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

/// Element of a parameter in row-major order.
using ParamIndex = Index<struct ParamTag>;
using ParamRange = Range<struct ParamTag>;
/// Element of the full buffer of a group, in which every parameter is contiguous.
using FullIndex = Index<struct FullTag>;
using FullRange = Range<struct FullTag>;
/// Element of one rank's slice of the communication buffer.
using SliceIndex = Index<struct SliceTag>;
using SliceRange = Range<struct SliceTag>;

/// Index of one of several objects, as a type that other kinds of index do not convert to.
template <class Tag>
struct Id {
  int value = 0;
  Id() = default;
  explicit constexpr Id(int v) : value(v) {}
  /// Returns the index into a vector with an entry for each.
  constexpr size_t index() const { return static_cast<size_t>(value); }
  friend constexpr auto operator<=>(Id, Id) = default;
};

/// Parameter of a layout: its index in ShardLayout::params().
using ParamId = Id<struct ParamIdTag>;
/// Rank of a layout: the index of its cell, which on a mesh differs from the rank in the world.
using RankId = Id<struct RankIdTag>;

/// Rectangular piece of a global tensor.
struct Box {
  Shape offset, size;
  friend bool operator==(const Box&, const Box&) = default;
};

/// Splits a flat row-major interval of a tensor of `shape` into at most 2*(ndim-1)+1 boxes, in order.
/// A scalar is treated as shape [1]; an empty interval gives no box.
[[nodiscard]] std::vector<Box> boxes_of(const Shape& shape, ParamRange range);

}  // namespace sherd
