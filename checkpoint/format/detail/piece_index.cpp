#include <sherd/checkpoint/format/detail/piece_index.h>

#include <algorithm>

#include <sherd/checkpoint/format/coverage.h>

namespace sherd {
namespace {

size_t distinct_offsets(std::span<const CheckpointPiece> pieces, size_t d) {
  std::vector<int64_t> offsets;
  offsets.reserve(pieces.size());
  for (const CheckpointPiece& piece : pieces) offsets.push_back(piece.box.offset[d]);
  std::sort(offsets.begin(), offsets.end());
  return static_cast<size_t>(std::unique(offsets.begin(), offsets.end()) - offsets.begin());
}

}  // namespace

PieceIndex::PieceIndex(std::span<const CheckpointPiece> pieces) {
  size_t most = 0;
  for (size_t d = 0; !pieces.empty() && d < pieces.front().box.size.size(); ++d) {
    const size_t distinct = distinct_offsets(pieces, d);
    if (distinct > most) most = distinct, axis_ = d;
  }
  for (const CheckpointPiece& piece : pieces) pieces_.push_back(&piece);
  std::stable_sort(pieces_.begin(), pieces_.end(), [this](const auto* a, const auto* b) {
    return a->box.offset[axis_] < b->box.offset[axis_];
  });
  int64_t end = 0;
  for (const CheckpointPiece* piece : pieces_)
    ends_.push_back(end = std::max(end, piece->box.offset[axis_] + piece->box.size[axis_]));
}

std::vector<PieceIndex::Meeting> PieceIndex::meeting(const Box& box) const {
  std::vector<Meeting> found;
  if (pieces_.empty()) return found;
  const int64_t begin = box.offset[axis_], end = begin + box.size[axis_];
  const auto first = std::upper_bound(ends_.begin(), ends_.end(), begin);
  for (auto i = static_cast<size_t>(first - ends_.begin()); i < pieces_.size(); ++i) {
    if (pieces_[i]->box.offset[axis_] >= end) break;
    if (auto common = intersect(pieces_[i]->box, box)) found.push_back({pieces_[i], std::move(*common)});
  }
  return found;
}

}  // namespace sherd
