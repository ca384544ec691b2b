#include <sherd/checkpoint/detail/compare_copies.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/checkpoint/files/content_digest.h>
#include <sherd/comm/core/require_equal.h>

namespace sherd {
namespace {

using nlohmann::json;

constexpr size_t kDifferences = 32;  // that a rank reports
constexpr size_t kListed = 4;        // files that a message has
constexpr const char* kMissing = "no such file";

std::string encode(const std::vector<FileCopy>& copies) {
  json list = json::array();
  for (const FileCopy& c : copies) list.push_back({c.name, c.path, c.digest, c.error});
  return list.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::vector<FileCopy> decode(const std::string& text) {
  std::vector<FileCopy> copies;
  for (const json& c : json::parse(text))
    copies.push_back(
        {c[0].get<std::string>(), c[1].get<std::string>(), c[2].get<uint64_t>(), c[3].get<std::string>()});
  return copies;
}

/// Why a file cannot be read may have other words on every rank.
uint64_t digest_of(const std::vector<FileCopy>& copies) {
  ContentDigest digest;
  for (const FileCopy& c : copies) {
    const uint64_t facts[] = {c.error.empty() ? c.digest : 0, c.error.empty()};
    digest.add(c.name);
    digest.add(facts, sizeof facts);
  }
  return digest.value();
}

bool same(const FileCopy& a, const FileCopy& b) {
  if (a.error.empty() && b.error.empty()) return a.digest == b.digest;
  return a.error.empty() == b.error.empty() && (a.error == kMissing) == (b.error == kMissing);
}

/// Entries of `mine` that are not as rank 0's, and those of rank 0's that this rank lacks, in rank 0's order. A rank that
/// could not read something does not know what else it lacks.
std::vector<FileCopy> differences(const std::vector<FileCopy>& first, const std::vector<FileCopy>& mine) {
  std::map<std::string_view, const FileCopy*> own;
  for (const FileCopy& c : mine) own[c.name] = &c;
  std::vector<FileCopy> found;
  const bool all_read =
      std::all_of(mine.begin(), mine.end(), [](const FileCopy& c) { return c.error.empty(); });
  std::set<std::string_view> known;
  for (const FileCopy& c : first) {
    known.insert(c.name);
    const auto at = own.find(c.name);
    if (at == own.end()) {
      if (all_read) found.push_back({c.name, "", 0, kMissing});
    } else if (!same(c, *at->second)) {
      found.push_back(*at->second);
    }
  }
  for (const FileCopy& c : mine)
    if (!known.contains(c.name)) found.push_back(c);
  if (found.size() > kDifferences) found.resize(kDifferences);
  return found;
}

/// "rank 3", "ranks 0-2, 5"; ascending.
std::string text_of(const std::vector<int>& ranks) {
  std::vector<std::string> runs;
  for (size_t i = 0, end = 0; i < ranks.size(); i = end) {
    for (end = i + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
    runs.push_back(end - i > 2
                       ? fmt::format("{}-{}", ranks[i], ranks[end - 1])
                       : fmt::format("{}", fmt::join(ranks.begin() + static_cast<ptrdiff_t>(i),
                                                     ranks.begin() + static_cast<ptrdiff_t>(end), ", ")));
  }
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(runs, ", "));
}

std::string copy_text(const FileCopy& c) {
  if (c.error == kMissing) return kMissing;
  const std::string place = c.path.empty() ? "" : fmt::format(" ('{}')", c.path);
  return c.error.empty() ? fmt::format("XXH3 {:016x}{}", c.digest, place)
                         : fmt::format("cannot read it: {}", c.error);
}

/// Ranks that have the same, by what they have.
struct Holders {
  FileCopy copy;  // of the first of them
  std::vector<int> ranks;
};

/// Returns the contents of one file on all ranks, with their holders: the most frequent last.
std::vector<Holders> holders_of(const std::string& name, const std::vector<FileCopy>& first,
                                const std::vector<std::vector<FileCopy>>& others,
                                const std::vector<int>& world) {
  const auto find = [&](const std::vector<FileCopy>& list) {
    return std::find_if(list.begin(), list.end(), [&](const FileCopy& c) { return c.name == name; });
  };
  const auto at_first = find(first);
  const FileCopy missing{name, "", 0, kMissing};
  std::vector<Holders> all;
  for (size_t rank = 0; rank < others.size(); ++rank) {
    const auto own = find(others[rank]);
    const FileCopy& copy = own != others[rank].end() ? *own : at_first != first.end() ? *at_first : missing;
    const auto alike =
        std::find_if(all.begin(), all.end(), [&](const Holders& h) { return same(h.copy, copy); });
    if (alike == all.end())
      all.push_back({copy, {world[rank]}});
    else
      alike->ranks.push_back(world[rank]);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Holders& a, const Holders& b) { return a.ranks.size() < b.ranks.size(); });
  return all;
}

[[noreturn]] void refuse(const std::vector<FileCopy>& first, const std::vector<std::vector<FileCopy>>& others,
                         const std::vector<int>& world) {
  std::vector<std::string> names, lines;
  for (const auto& list : others)
    for (const FileCopy& c : list)
      if (std::find(names.begin(), names.end(), c.name) == names.end()) names.push_back(c.name);
  std::set<int> odd;
  for (const std::string& name : names) {
    std::vector<Holders> all = holders_of(name, first, others, world);
    // If some ranks cannot read the path of a flag, the others have entries for its files, and none for the
    // flag.
    const bool unread = std::any_of(all.begin(), all.end(), [](const Holders& h) {
      return !h.copy.error.empty() && h.copy.error != kMissing;
    });
    if (unread) std::erase_if(all, [](const Holders& h) { return h.copy.error == kMissing; });
    const size_t most = all.back().ranks.size();
    const bool tie = all.size() > 1 && all[all.size() - 2].ranks.size() == most;
    std::vector<std::string> who;
    for (const Holders& h : all) {
      if (h.ranks.size() < most || tie || !h.copy.error.empty()) odd.insert(h.ranks.begin(), h.ranks.end());
      const bool reads = h.copy.error.empty() || h.copy.error == kMissing;
      who.push_back(fmt::format("{} {}{}", text_of(h.ranks),
                                !reads               ? ""
                                : h.ranks.size() > 1 ? "have "
                                                     : "has ",
                                copy_text(h.copy)));
    }
    if (lines.size() < kListed) lines.push_back(fmt::format("{}: {}", name, fmt::join(who, ", ")));
  }
  if (names.size() > kListed) lines.push_back(fmt::format("and {} more", names.size() - kListed));
  const std::vector<int> ranks(odd.begin(), odd.end());
  throw RanksDiffer(
      fmt::format("the ranks have different copies of files that each of them reads: {}; a model of them "
                  "would be a mixture: "
                  "copy the files from one host to the others, or name files that all hosts share",
                  fmt::join(lines, "; ")),
      ranks);
}

}  // namespace

void compare_copies(Agreement& ranks, std::vector<FileCopy> mine) {
  std::sort(mine.begin(), mine.end(), [](const FileCopy& a, const FileCopy& b) { return a.name < b.name; });
  if (ranks.all_equal(digest_of(mine))) return;
  const std::string own = encode(mine);
  const std::vector<FileCopy> first = decode(ranks.broadcast(own));
  const std::vector<FileCopy> differing = differences(first, decode(own));
  std::vector<std::vector<FileCopy>> others;
  std::vector<int> world;
  for (const std::string& text :
       ranks.exchange(fmt::format("{} {}", ranks.world_rank(), encode(differing)))) {
    const size_t end = text.find(' ');
    world.push_back(std::stoi(text.substr(0, end)));
    others.push_back(decode(text.substr(end + 1)));
  }
  refuse(first, others, world);
}

CheckpointReader open_alike(Agreement& ranks, bool compare, const std::function<CheckpointReader()>& open) {
  std::optional<CheckpointReader> reader;
  std::vector<FileCopy> copies;
  ranks.run_collectively(
      [&] {
        reader.emplace(open());
        if (compare) copies = weights_copies(reader->path(), reader->files());
      },
      Agreement::Names::failing_rank);
  if (compare) compare_copies(ranks, copies);
  return std::move(*reader);
}

}  // namespace sherd
