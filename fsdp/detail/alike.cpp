#include <sherd/fsdp/detail/alike.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include <sherd/comm/core/require_equal.h>

namespace sherd {
namespace {

constexpr size_t kNamed = 5;  // differences that a message lists

}  // namespace

void check_alike(Communicator& comm, Stream& stream, const std::vector<ParamGroup*>& groups,
                 const std::string& otherwise) {
  std::vector<ParamGroup::Trait> traits;
  uint64_t digest = 0;
  for (const ParamGroup* g : groups) {
    digest = (digest ^ g->fingerprint()) * 0x9e3779b97f4a7c15ull;
    for (auto& t : g->traits()) traits.push_back(std::move(t));
  }
  const auto ranks = static_cast<size_t>(comm.size());
  const auto column = [&](const std::vector<uint64_t>& rows, size_t width, size_t at) {
    std::vector<uint64_t> values;
    for (size_t r = 0; r < ranks; ++r) values.push_back(rows[r * width + at]);
    return values;
  };
  const std::array<uint64_t, 3> mine{digest, traits.size(), static_cast<uint64_t>(comm.world_rank())};
  const std::vector<uint64_t> all = gather_values(comm, stream, mine);
  std::vector<int> names;
  for (const uint64_t r : column(all, mine.size(), 2)) names.push_back(static_cast<int>(r));
  const std::string who = differing(column(all, mine.size(), 0), names);
  if (who.empty()) return;
  // All ranks know that by now, so all of them compare further.
  if (!differing(column(all, mine.size(), 1), names).empty())
    throw ShapeMismatch(fmt::format("{}: {}; their units and parameters are not even as many", otherwise, who));
  std::vector<uint64_t> digests;
  for (auto& t : traits) digests.push_back(t.digest);
  const std::vector<uint64_t> rows = gather_values(comm, stream, digests);
  std::vector<std::string> where;
  for (size_t i = 0; i < traits.size() && where.size() < kNamed; ++i)
    if (!differing(column(rows, traits.size(), i), names).empty()) where.push_back(traits[i].what);
  throw ShapeMismatch(fmt::format("{}: {} in {}", otherwise, who,
                                  where.empty() ? "the names of units" : fmt::format("{}", fmt::join(where, ", "))));
}

}  // namespace sherd
