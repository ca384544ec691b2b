#include <sherd/fsdp/detail/alike.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include <sherd/comm/core/require_equal.h>
#include <sherd/kernels/ops/random.h>

namespace sherd {
namespace {

constexpr size_t kNamed = 5;  // differences that a message lists

ParamGroup::Trait trait_of(const Buffer& b) {
  uint64_t digest = hash64(digest_of(b.init()), b.name());
  for (const int64_t d : b.shape()) digest = hash64(digest ^ static_cast<uint64_t>(d), "size");
  digest = hash64(digest ^ static_cast<uint64_t>(b.dtype()), b.persistent() ? "persistent" : "not persistent");
  return {fmt::format("what buffer '{}' is", b.name()), digest};
}

}  // namespace

void check_alike(Communicator& comm, Stream& stream, const std::vector<ParamGroup*>& groups,
                 const std::vector<Buffer>& buffers, const std::string& otherwise) {
  std::vector<ParamGroup::Trait> traits;
  uint64_t digest = 0;
  for (const ParamGroup* g : groups) {
    digest = (digest ^ g->fingerprint()) * 0x9e3779b97f4a7c15ull;
    for (auto& t : g->traits()) traits.push_back(std::move(t));
  }
  for (const Buffer& b : buffers) {
    traits.push_back(trait_of(b));
    digest = (digest ^ traits.back().digest) * 0x9e3779b97f4a7c15ull;
  }
  const std::array<uint64_t, 2> mine{digest, traits.size()};
  const std::vector<ValueComparison> whole = compare_values(comm, stream, mine);
  if (whole[0].equal()) return;
  // All ranks know that by now, so all of them compare further.
  const std::string& who = whole[0].text;
  if (!whole[1].equal())
    throw RanksDiffer(fmt::format("{}: {}; their units, parameters and buffers are not even as many", otherwise, who),
                      whole[0].odd_ranks);
  std::vector<uint64_t> digests;
  for (auto& t : traits) digests.push_back(t.digest);
  const std::vector<ValueComparison> each = compare_values(comm, stream, digests);
  std::vector<std::string> where;
  for (size_t i = 0; i < traits.size() && where.size() < kNamed; ++i)
    if (!each[i].equal()) where.push_back(traits[i].what);
  throw RanksDiffer(
      fmt::format("{}: {} in {}", otherwise, who,
                  where.empty() ? "the names of units" : fmt::format("{}", fmt::join(where, ", "))),
      whole[0].odd_ranks);
}

}  // namespace sherd
