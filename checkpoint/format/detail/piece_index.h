// Index of a tensor's pieces by the boxes that meet them.
#pragma once

#include <span>
#include <vector>

#include <sherd/checkpoint/format/manifest.h>

namespace sherd {

/// Sorted once along the dimension in which the pieces differ most, so that a search checks few pieces beyond
/// its results. Refers to the pieces.
class PieceIndex {
 public:
  explicit PieceIndex(std::span<const CheckpointPiece> pieces);

  struct Meeting {
    const CheckpointPiece* piece;
    /// Intersection of piece and box.
    Box common;
  };
  std::vector<Meeting> meeting(const Box& box) const;

 private:
  size_t axis_ = 0;
  std::vector<const CheckpointPiece*> pieces_;  // by offset along the axis
  std::vector<int64_t> ends_;                   // along the axis, the largest of pieces 0 to i
};

}  // namespace sherd
