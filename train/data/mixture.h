// Mixture of data sources: the source of each sequence of a training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sherd {

/// Sources in fixed proportion, exactly: each period of S = (sum of shares) sequences takes shares[f] from
/// source f, and the counts of any beginning are within a few sequences of the proportion. Sequence p of a
/// period has the number (p * stride) mod S, stride near S divided by the golden ratio and coprime to S, and
/// source f owns a range of shares[f] numbers. The number of earlier sequences of a source is then a sum of
/// floors, computed in O(log S) steps: without state, so that any rank can compute any sequence.
class Mixture {
 public:
  static constexpr int64_t kLongestPeriod = int64_t{1} << 30;

  /// @throws InvalidArgument unless there are shares, all positive, of a sum of at most kLongestPeriod.
  explicit Mixture(std::vector<int64_t> shares);

  size_t sources() const { return ends_.size(); }
  int64_t period() const { return ends_.back(); }
  int64_t share(size_t source) const { return ends_[source] - begin(source); }

  struct Draw {
    size_t source;
    int64_t number;  ///< of the sequence among those of its source, from 0, in order
  };
  /// Returns the draw of sequence number `sequence`, from 0.
  Draw draw(int64_t sequence) const;
  /// Returns how many of the first `sequences` come from `source`.
  int64_t drawn(size_t source, int64_t sequences) const;

 private:
  int64_t begin(size_t source) const { return source == 0 ? 0 : ends_[source - 1]; }

  std::vector<int64_t> ends_;  // of the sources' ranges of numbers
  int64_t stride_ = 1;
};

}  // namespace sherd
