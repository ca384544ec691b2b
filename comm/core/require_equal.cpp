#include <sherd/comm/core/require_equal.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <map>
#include <utility>

#include <sherd/kernels/ops/ops.h>

namespace sherd {

std::vector<uint64_t> gather_values(Communicator& comm, Stream& stream, std::span<const uint64_t> values,
                                    Tensor memory) {
  const auto n = static_cast<int64_t>(values.size());
  std::vector<uint64_t> all(values.size() * static_cast<size_t>(comm.size()));
  if (n == 0) return all;
  if (!memory.defined()) {
    memory = Tensor::empty(comm.device(), {n * comm.size()}, DType::i64, MemoryClass::message,
                           "comparison of ranks");
    follow_compute(stream);
  }
  const Tensor mine = memory.flat(comm.rank() * n, (comm.rank() + 1) * n);
  ops::copy_from_host(stream, mine, values.data(), mine.nbytes());
  comm.all_gather(stream, memory, mine);
  ops::copy_to_host(stream, all.data(), memory);
  return all;
}

std::string differing(std::span<const uint64_t> values, std::span<const int> names) {
  std::map<uint64_t, size_t> holders;
  for (const uint64_t v : values) ++holders[v];
  if (holders.size() < 2) return "";
  uint64_t common = values[0];
  for (const uint64_t v : values)
    if (holders[v] > holders[common]) common = v;
  std::vector<std::string> odd;
  for (size_t r = 0; r < values.size(); ++r)
    if (values[r] != common) odd.push_back(fmt::format("{} ({:016x})", names[r], values[r]));
  return fmt::format("rank{} {} differ{} from the others ({:016x})", odd.size() > 1 ? "s" : "",
                     fmt::join(odd, ", "), odd.size() > 1 ? "" : "s", common);
}

void require_equal(Communicator& comm, Stream& stream, uint64_t value, const std::string& otherwise,
                   Tensor memory) {
  const std::array<uint64_t, 2> mine{value, static_cast<uint64_t>(comm.world_rank())};
  const std::vector<uint64_t> all = gather_values(comm, stream, mine, std::move(memory));
  std::vector<uint64_t> values;
  std::vector<int> names;
  for (size_t at = 0; at < all.size(); at += 2) {
    values.push_back(all[at]);
    names.push_back(static_cast<int>(all[at + 1]));
  }
  if (const std::string who = differing(values, names); !who.empty())
    throw ShapeMismatch(fmt::format("{}: {}", otherwise, who));
}

}  // namespace sherd
