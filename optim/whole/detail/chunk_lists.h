// Lists of the matrices that make up the chunks, within a bound on memory. Private to optim/.
#pragma once

#include <deque>
#include <vector>

#include <sherd/optim/whole/detail/rank_view.h>

namespace sherd {

class ChunkLists {
 public:
  /// @param limit elements of a list's messages and matrices on a rank.
  ChunkLists(const RankView& view, int64_t limit, bool distributed)
      : view_(view), limit_(std::max<int64_t>(1, limit)), distributed_(distributed) {}

  /// Splits a list in parts of at most `limit` elements (or one matrix), equal shapes together.
  std::vector<std::vector<int>> split(std::vector<int> list) const;
  /// Takes matrices from the queues of all owners in turn, so that all owners have work in every chunk.
  std::vector<std::vector<int>> cut(std::vector<std::deque<int>> queues) const;

 private:
  /// Elements of messages that an entry adds on a rank: sent and received on the way in. The way out mirrors
  /// them, times the copies.
  struct Need {
    int rank;
    int64_t send = 0, recv = 0;
  };
  std::vector<Need> needs(int i) const;
  /// Returns whether the part of needs() that owners receive fits beside `recv`, by rank.
  bool owners_have_room(int i, const std::vector<int64_t>& recv) const;
  /// Returns the elements of the Gram matrix that is summed for it, if any.
  int64_t gram_elements(int i) const;
  int64_t size_of(int i) const { return view_.matrix(i).numel() + gram_elements(i); }

  const RankView& view_;
  int64_t limit_;
  bool distributed_;
};

}  // namespace sherd
