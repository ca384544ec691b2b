#include <sherd/fsdp/detail/update_count.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <sherd/comm/core/require_equal.h>

namespace sherd {

void UpdateCount::begin(Stream& stream) {
  stream.submit({"update begins", WorkKind::update}, [counts = counts_](ExecutionContext& context) {
    // After the operations before it have completed on the device: the host may be many operations ahead.
    context.after([counts] { ++counts->begun; });
  });
}

void UpdateCount::end(Stream& stream) {
  stream.submit({"update ends", WorkKind::optimizer}, [counts = counts_](ExecutionContext& context) {
    context.after([counts] { counts->ended = counts->begun.load(); });
  });
}

void UpdateCount::require_equal(Communicator& comm, Stream& stream, const Tensor& memory,
                                const std::string& label) {
  const uint64_t mine[2] = {static_cast<uint64_t>(counts_->begun), static_cast<uint64_t>(counts_->ended)};
  const auto all = gather_values(comm, stream, mine, memory);
  std::vector<int> cut_off;
  std::vector<uint64_t> ended;
  for (size_t r = 0; 2 * r < all.size(); ++r) {
    if (all[2 * r] != all[2 * r + 1]) cut_off.push_back(static_cast<int>(r));
    ended.push_back(all[2 * r + 1]);
  }
  const bool apart = std::adjacent_find(ended.begin(), ended.end(), std::not_equal_to<>()) != ended.end();
  if (cut_off.empty() && !apart) return;
  // Once a checkpoint is loaded the ranks are equal again.
  counts_->begun = counts_->ended = static_cast<int64_t>(*std::max_element(ended.begin(), ended.end()));
  throw Error(fmt::format(
      "{}: the failure cut an update of the weights off (ranks in the middle of it: {}; updates that ended, "
      "by "
      "rank: {}), so the ranks hold weights of different steps; load a checkpoint before training continues",
      label, cut_off.empty() ? "none" : fmt::format("{}", fmt::join(cut_off, ", ")), fmt::join(ended, ", ")));
}

}  // namespace sherd
