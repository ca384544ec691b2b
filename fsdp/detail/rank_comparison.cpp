#include <sherd/fsdp/detail/rank_comparison.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <sherd/comm/core/require_equal.h>
#include <sherd/kernels/random/random.h>

namespace sherd {
namespace {

std::string otherwise(const DeviceMesh& mesh) {
  return fmt::format(
      "{}: the ranks of mesh '{}' wrapped different models or passed different options; build the same model "
      "with the same options on every rank",
      mesh.world()->device().label(), mesh.describe());
}

constexpr size_t kNamed = 5;  // differences that a message lists

ParamGroup::Trait trait_of(const Buffer& b) {
  uint64_t digest = hash64(digest_of(b.init()), b.name());
  for (const int64_t d : b.shape()) digest = hash64(digest ^ static_cast<uint64_t>(d), "size");
  digest =
      hash64(digest ^ static_cast<uint64_t>(b.dtype()), b.persistent() ? "persistent" : "not persistent");
  return {fmt::format("what buffer '{}' is", b.name()), digest};
}

constexpr size_t kLineWords = 32;  // of a difference in words, 8 bytes each

}  // namespace

RankComparison::RankComparison(const DeviceMesh& mesh)
    : mesh_(mesh), stream_(mesh.world()->device().make_stream("check")) {
  {
    // The clone is the first collective: an entry purpose names ranks that do not call fully_shard().
    const Serving entry(*mesh.world(), Purpose::entry("fully_shard"));
    comm_ = mesh.world()->clone();
  }
  comm_->serve(Purpose("the comparison of what ranks do"));
  // Two words per rank, for require_equal() and UpdateCount. Made once: memory of a later request would make
  // the stream wait for compute.
  memory_ = Tensor::empty(mesh.world()->device(), {2 * comm_->size()}, DType::i64, MemoryClass::message,
                          "fingerprint");
  follow_compute(*stream_);
}

// Compares one digest first. Its result is the same on all ranks: all of them return, or all compare further.
void RankComparison::require_same_wraps(const std::vector<std::string>& lines) {
  std::vector<uint64_t> digests;
  uint64_t digest = 0;
  for (const std::string& line : lines) digests.push_back(digest = hash64(digest, line));
  const ValueComparison whole = compare_values(*comm_, *stream_, {&digest, 1}).front();
  if (whole.equal()) return;
  const uint64_t mine = digests.size();
  const std::vector<uint64_t> counts = gather_values(*comm_, *stream_, {&mine, 1});
  // compare_values() needs equally many values on every rank: the common prefix. Each digest includes the
  // lines before it.
  digests.resize(*std::min_element(counts.begin(), counts.end()));
  const std::vector<ValueComparison> each = compare_values(*comm_, *stream_, digests);
  const auto first =
      std::find_if(each.begin(), each.end(), [](const ValueComparison& c) { return !c.equal(); });
  const auto at = static_cast<size_t>(first - each.begin());
  const ValueComparison& found = first == each.end() ? whole : *first;
  // The rank and its line. A zero ends the line, which has at most 8 * kLineWords - 1 bytes.
  std::array<uint64_t, kLineWords + 1> words{static_cast<uint64_t>(comm_->world_rank())};
  const std::string line = (at < lines.size() ? lines[at] : "nothing more").substr(0, 8 * kLineWords - 1);
  std::memcpy(&words[1], line.data(), line.size());
  const std::vector<uint64_t> all = gather_values(*comm_, *stream_, words);
  const auto is_odd = [&](int rank) {
    return std::find(found.odd_ranks.begin(), found.odd_ranks.end(), rank) != found.odd_ranks.end();
  };
  std::string odd, common;
  for (size_t row = 0; row < all.size(); row += words.size()) {
    const auto rank = static_cast<int>(all[row]);
    std::string& text = is_odd(rank) ? odd : common;
    if (text.empty())
      text = fmt::format("rank {} has {}", rank, reinterpret_cast<const char*>(&all[row + 1]));
  }
  throw RanksDiffer(
      fmt::format("{}: {}; the first difference: {}, {}", otherwise(mesh_), found.text, odd, common),
      found.odd_ranks);
}

void RankComparison::require_same_model(const std::vector<ParamGroup*>& groups,
                                        const std::vector<Buffer>& buffers) {
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
  const std::vector<ValueComparison> whole = compare_values(*comm_, *stream_, mine);
  if (whole[0].equal()) return;
  // All ranks have this result, so all of them compare further.
  const std::string& who = whole[0].text;
  if (!whole[1].equal())
    throw RanksDiffer(fmt::format("{}: {}; their units, parameters and buffers are not even as many",
                                  otherwise(mesh_), who),
                      whole[0].odd_ranks);
  std::vector<uint64_t> digests;
  for (auto& t : traits) digests.push_back(t.digest);
  const std::vector<ValueComparison> each = compare_values(*comm_, *stream_, digests);
  std::vector<std::string> where;
  for (size_t i = 0; i < traits.size() && where.size() < kNamed; ++i)
    if (!each[i].equal()) where.push_back(traits[i].what);
  throw RanksDiffer(
      fmt::format("{}: {} in {}", otherwise(mesh_), who,
                  where.empty() ? "the names of units" : fmt::format("{}", fmt::join(where, ", "))),
      whole[0].odd_ranks);
}

void RankComparison::require_equal(uint64_t value, const std::string& problem) {
  sherd::require_equal(*comm_, *stream_, value,
                       fmt::format("{}: {}", mesh_.world()->device().label(), problem), memory_);
}

void RankComparison::note(uint64_t value) { alike_ = hash64(alike_ ^ value, {}); }

uint64_t RankComparison::served() const { return hash64(mesh_.world()->digest() ^ alike_, {}); }

bool RankComparison::due(uint64_t steps) {
  if (steps / 64 == compared_ / 64) return false;
  compared_ = steps;
  return true;
}

void RankComparison::replaced() {
  mesh_.world()->reset_digest();
  alike_ = 0;
  *ranks_apart_ = false;
}

void RankComparison::recovered(UpdateCount& updates) {
  alike_ = 0;  // ranks may have noted different values
  compared_ = ~uint64_t{0};
  updates.require_equal(*comm_, *stream_, memory_, mesh_.world()->device().label());
}

}  // namespace sherd
