// Test that all ranks have the same value, on demand.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sherd/comm/core/communicator.h>

namespace sherd {

/// Error for ranks with different values where all must be equal. Thrown on every rank alike.
class RanksDiffer final : public ShapeMismatch {
 public:
  RanksDiffer(const std::string& what, std::vector<int> ranks)
      : ShapeMismatch(what), ranks_(std::move(ranks)) {}
  /// Returns the world ranks whose value is not the most frequent one, ascending.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<int> ranks_;
};

/// Form of values in messages: digests in hexadecimal, counts in decimal.
enum class ValueIs { digest, count };

/// Comparison of the ranks' values of one kind; the same on every rank.
struct ValueComparison {
  /// World ranks whose value is not the most frequent one (of several as frequent: the lowest rank's).
  std::vector<int> odd_ranks = {};
  /// "ranks 1 (8), 3 (9) differ from the others (7)"; "" when all are equal.
  std::string text = {};

  bool equal() const { return odd_ranks.empty(); }
};

/// Compares values[i] of every rank, for each i. Collective with equally many values on every rank; queues on
/// `stream` and blocks the host. One all-gather of values.size() + 1 words per rank. `memory`: i64, size() *
/// (values.size() + 1) elements, for a stream that must not wait for compute(); allocated for the call when
/// undefined.
/// @throws CommError as collectives do.
std::vector<ValueComparison> compare_values(Communicator& comm, Stream& stream,
                                            std::span<const uint64_t> values, Tensor memory = {},
                                            ValueIs shown = ValueIs::digest);

/// Checks that all ranks pass the same value. Collective as compare_values() of one value. Where an
/// all-reduce is made anyway, SameValue costs less.
/// @throws RanksDiffer on every rank, "<otherwise>: ranks 1 (8), 3 (9) differ from the others (7)",
/// otherwise.
void require_equal(Communicator& comm, Stream& stream, uint64_t value, const std::string& otherwise,
                   Tensor memory = {}, ValueIs shown = ValueIs::digest);

/// Returns values[i] of every rank, of rank r at [r * values.size() + i]. Collective with equally many values
/// on every rank; queues on `stream` and blocks the host. `memory`: as for compare_values(), size() *
/// values.size() elements.
std::vector<uint64_t> gather_values(Communicator& comm, Stream& stream, std::span<const uint64_t> values,
                                    Tensor memory = {});

}  // namespace sherd
