// Comparison of what the ranks of one model do.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <sherd/dtensor/mesh.h>
#include <sherd/fsdp/buffer.h>
#include <sherd/fsdp/detail/update_count.h>
#include <sherd/fsdp/group.h>

namespace sherd {

/// Comparisons on a stream and a communicator of their own: they do not queue behind operations that may wait for a
/// diverged rank.
class RankComparison {
 public:
  /// Collective, the first call of fully_shard().
  explicit RankComparison(const DeviceMesh& mesh);

  /// Compares lists of units, parameters and buffers as text, before they are made: ranks that make different
  /// communicators would wait for each other. Collective; blocks the host.
  /// @throws RanksDiffer on every rank, "...: rank 1 (...) differs from the others (...); the first difference: rank 1 has
  /// unit 'blocks.0' ..., rank 0 has parameter 'blocks.0.up.weight' ...".
  void require_same_wraps(const std::vector<std::string>& lines);
  /// Compares all traits of the groups and the descriptions of the buffers. Collective; blocks the host.
  /// @throws RanksDiffer on every rank, "...: rank 1 (...) differs from the others (...) in the initial values of parameter
  /// 'head.weight'", unless all ranks agree.
  void require_same_model(const std::vector<ParamGroup*>& groups, const std::vector<Buffer>& buffers);
  /// See ShardRuntime.
  void require_equal(uint64_t value, const std::string& problem);
  void note(uint64_t value);
  uint64_t served() const;
  const std::shared_ptr<std::atomic<bool>>& ranks_apart() const { return ranks_apart_; }
  /// Returns ShardRuntime::comparison_due(). @param steps a count that is equal on all ranks.
  bool due(uint64_t steps);
  /// Forgets what was noted: ranks are equal again.
  void replaced();
  /// Forgets what was noted before a failure; the next comparison is due at once. Collective.
  /// @throws as UpdateCount::require_equal().
  void recovered(UpdateCount& updates);

 private:
  DeviceMesh mesh_;
  uint64_t alike_ = 0;     // of the values noted
  uint64_t compared_ = 0;  // steps when due() was last true
  std::shared_ptr<std::atomic<bool>> ranks_apart_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<Communicator> comm_;
  Tensor memory_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace sherd
