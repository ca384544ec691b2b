// Small host-side exchanges among ranks: outcomes, names, plans. Private to checkpoint/.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/comm/core/communicator.h>

namespace sherd {

/// Every call is collective and blocks the host. One thread at a time, not necessarily the rank's own: all
/// memory is taken in the constructor, all communication is on a communicator and a stream of its own.
class Agreement {
 public:
  /// Collective; on the rank's thread. `function`: the public function that every rank has called, for
  /// Purpose::entry(). Reports for gather() have at most `report_words` words.
  Agreement(Communicator& ranks, std::string_view function, int64_t report_words = 0);

  int rank() const { return comm_->rank(); }
  int size() const { return comm_->size(); }
  int world_rank() const { return comm_->world_rank(); }
  /// Prefix of a failure's text in run_collectively() when not all ranks have the failure: none, or "rank N:
  /// ".
  enum class Names { nothing, failing_rank };
  /// Runs `work` on every rank. When it throws on any, every rank throws what the first such rank threw:
  /// the same text, and the same type if that is one of base/error.h (a rank that failed alike its
  /// own exception).
  void run_collectively(const std::function<void()>& work, Names names = Names::nothing);
  /// Rank 0's text on every rank.
  std::string broadcast(const std::string& text);
  /// Rank 0's texts on every rank, whatever bytes they have.
  std::vector<std::string> broadcast(const std::vector<std::string>& texts);
  /// Every rank's text on every rank, in rank order. A broadcast for each rank: for failures.
  std::vector<std::string> exchange(const std::string& mine);
  /// counts[r] words of every rank, one after the other, on rank 0; nothing elsewhere. The sum of `counts` on
  /// rank 0, the own count elsewhere, is at most `report_words`.
  std::vector<int64_t> gather(const std::vector<int64_t>& mine, const std::vector<int64_t>& counts);
  /// Returns whether all ranks pass the same value.
  bool all_equal(uint64_t value);
  /// @throws RanksDiffer on every rank, with `otherwise` and the ranks that differ, unless all pass the same
  /// value. `function`, if any: the public function that every rank has called (Purpose::entry()).
  void require_equal(int64_t value, const std::string& otherwise, std::string_view function = "");
  int64_t min(int64_t value);
  int64_t sum(int64_t value);
  CommCounts counts() const { return comm_->counts(); }
  /// Fails whatever the other ranks wait for.
  void abort(const std::string& cause) noexcept { comm_->abort(cause); }

 private:
  int64_t reduce(int64_t value, ReduceOp op);
  std::string send_text(const std::string& text, int root);

  std::shared_ptr<Communicator> comm_;
  Tensor word_, compared_, text_, send_, receive_;
  std::unique_ptr<Stream> stream_;  // last: it ends before the memory goes
};

/// Bytes of every rank on rank 0, in rank order; nothing elsewhere. On the rank's thread, on the compute
/// stream. Collective; blocks the host.
std::vector<std::string> gather_bytes(Communicator& ranks, const std::string& mine);

}  // namespace sherd
