#include <sherd/comm/core/require_equal.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>

#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

std::string show(uint64_t value, ValueIs shown) {
  return shown == ValueIs::digest ? fmt::format("{:016x}", value)
                                  : fmt::format("{}", static_cast<int64_t>(value));
}

// Compares column `at` of rows of `width` words, one row a rank. A row ends with the rank's index in the
// world. All ranks have the same rows, so all get the same result.
ValueComparison compare(const std::vector<uint64_t>& rows, size_t width, size_t at, ValueIs shown) {
  std::map<uint64_t, size_t> holders;
  for (size_t row = 0; row < rows.size(); row += width) ++holders[rows[row + at]];
  if (holders.size() < 2) return {};
  uint64_t common = rows[at];
  for (size_t row = 0; row < rows.size(); row += width)
    // Only a larger count replaces it: of equally frequent values the lowest rank's is the common one.
    if (holders[rows[row + at]] > holders[common]) common = rows[row + at];
  ValueComparison result;
  std::vector<std::string> odd;
  for (size_t row = 0; row < rows.size(); row += width) {
    const uint64_t value = rows[row + at];
    if (value == common) continue;
    result.odd_ranks.push_back(static_cast<int>(rows[row + width - 1]));
    odd.push_back(fmt::format("{} ({})", result.odd_ranks.back(), show(value, shown)));
  }
  const bool several = odd.size() > 1;
  result.text = fmt::format("rank{} {} differ{} from the others ({})", several ? "s" : "",
                            fmt::join(odd, ", "), several ? "" : "s", show(common, shown));
  return result;
}

}  // namespace

std::vector<uint64_t> gather_values(Communicator& comm, Stream& stream, std::span<const uint64_t> values,
                                    Tensor memory) {
  const auto n = static_cast<int64_t>(values.size());
  std::vector<uint64_t> all(values.size() * static_cast<size_t>(comm.size()));
  if (n == 0) return all;
  if (!memory.defined()) {
    memory = Tensor::empty(comm.device(), {n * comm.size()}, DType::i64, MemoryClass::message,
                           "comparison of ranks");
    // The allocator may return memory that queued compute operations still read.
    follow_compute(stream);
  }
  const Tensor mine = memory.flat(comm.rank() * n, (comm.rank() + 1) * n);
  ops::copy_from_host(stream, mine, values.data(), mine.nbytes());
  // In place. An all-gather instead of a reduction: the message names the ranks and their values.
  comm.all_gather(stream, memory, mine);
  ops::copy_to_host(stream, all.data(), memory);
  return all;
}

std::vector<ValueComparison> compare_values(Communicator& comm, Stream& stream,
                                            std::span<const uint64_t> values, Tensor memory, ValueIs shown) {
  std::vector<uint64_t> mine(values.begin(), values.end());
  mine.push_back(static_cast<uint64_t>(comm.world_rank()));
  const std::vector<uint64_t> all = gather_values(comm, stream, mine, std::move(memory));
  std::vector<ValueComparison> comparisons;
  for (size_t i = 0; i < values.size(); ++i) comparisons.push_back(compare(all, mine.size(), i, shown));
  return comparisons;
}

void require_equal(Communicator& comm, Stream& stream, uint64_t value, const std::string& otherwise,
                   Tensor memory, ValueIs shown) {
  ValueComparison found = compare_values(comm, stream, {&value, 1}, std::move(memory), shown).front();
  if (!found.equal())
    throw RanksDiffer(fmt::format("{}: {}", otherwise, found.text), std::move(found.odd_ranks));
}

}  // namespace sherd
