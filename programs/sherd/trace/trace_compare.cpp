#include "trace_compare.h"

#include <algorithm>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/enum_table.h>

#include "text.h"

namespace sherd::tools {
namespace {

using DivergenceKind = Divergence::Kind;
using Lane = OperationKey::Lane;

// Files of one failure are written within a timeout or so of each other.
constexpr int64_t kOneFailure = int64_t{3600} * 1'000'000'000;

OperationKey key_of(const FlightFile& file, const FlightEntry& e) {
  const FlightGroup& group = file.groups[e.group];
  OperationKey key{.group = group.name, .epoch = e.epoch, .sequence = e.sequence};
  if (e.op == "split") key.lane = Lane::split;
  if (!e.message()) return key;
  key.lane = Lane::message;
  const int peer = group.ranks[static_cast<size_t>(e.peer)];
  key.from = e.op == "send" ? file.rank : peer;
  key.to = e.op == "send" ? peer : file.rank;
  return key;
}

/// Returns the properties that all ranks of an operation share, the most significant first. Two ranks' sizes
/// of an all-to-all may differ, and so may the names of a message's two ends.
std::vector<std::pair<DivergenceKind, std::string>> aspects_of(const FlightEntry& e) {
  std::vector<std::pair<DivergenceKind, std::string>> all;
  if (!e.message()) all.emplace_back(DivergenceKind::operation, e.op);
  all.emplace_back(DivergenceKind::purpose, e.purpose);
  all.emplace_back(DivergenceKind::bytes,
                   e.op == "all_to_all_v" ? e.dtype : fmt::format("{} {} {}", e.dtype, e.elements, e.counts));
  if (!e.message()) all.emplace_back(DivergenceKind::arguments, fmt::format("{} {}", e.root, e.reduce));
  return all;
}

const FlightFile* file_of(const std::vector<FlightFile>& files, int rank) {
  const auto found =
      std::find_if(files.begin(), files.end(), [&](const FlightFile& f) { return f.rank == rank; });
  return found == files.end() ? nullptr : &*found;
}

/// Returns whether the rank is known not to have called the operation. False where its record may have
/// dropped the call.
bool never_called(const FlightFile& file, const OperationKey& key) {
  if (!file.truncated() || key.lane == Lane::message) return true;
  const FlightGroup* const group = file.find_group(key.group);
  if (!group) return false;
  if (group->epoch != key.epoch) return group->epoch < key.epoch;
  return (key.lane == Lane::split ? group->splits : group->calls) < key.sequence;
}

void find_absent(Operation& op, const std::vector<FlightFile>& files,
                 const std::map<std::string, std::vector<int>>& groups) {
  const auto waits = [](const auto& entry) { return entry.second->waits(); };
  if (std::none_of(op.entries.begin(), op.entries.end(), waits)) return;
  const std::vector<int> members =
      op.key.lane == Lane::message ? std::vector<int>{op.key.from, op.key.to} : groups.at(op.key.group);
  for (const int rank : std::set<int>(members.begin(), members.end())) {
    const auto entry = op.entries.find(rank);
    if (entry != op.entries.end()) {
      if (entry->second->state == "queued") op.queued.push_back(rank);
    } else if (const FlightFile* const file = file_of(files, rank); file && never_called(*file, op.key)) {
      op.never_came.push_back(rank);
    }
  }
}

/// The weightiest aspect in which ranks differ, with the ranks that are not with the most.
void find_difference(const Operation& op, std::vector<Divergence>& all) {
  if (op.entries.size() < 2) return;
  const size_t count = aspects_of(*op.entries.begin()->second).size();
  for (size_t i = 0; i < count; ++i) {
    std::map<std::string, std::vector<int>> sides;
    DivergenceKind kind{};
    for (const auto& [rank, entry] : op.entries) {
      const auto aspects = aspects_of(*entry);
      kind = aspects[i].first;
      sides[aspects[i].second].push_back(rank);
    }
    if (sides.size() == 1) continue;
    // If sides have one size, the one with the lowest rank counts as intended.
    const auto most = std::max_element(sides.begin(), sides.end(), [](const auto& a, const auto& b) {
      return std::tuple(a.second.size(), -a.second.front()) < std::tuple(b.second.size(), -b.second.front());
    });
    std::vector<int> odd;
    std::vector<std::string> theirs;
    for (const auto& [value, ranks] : sides) {
      if (value == most->first) continue;
      odd.insert(odd.end(), ranks.begin(), ranks.end());
      theirs.push_back(
          fmt::format("{} called {}", ranks_text(ranks), describe(*op.entries.at(ranks.front()))));
    }
    std::sort(odd.begin(), odd.end());
    all.push_back({kind, op.key.group, op.key.sequence, odd,
                   fmt::format("{}: {} called {}, but {}", describe(op.key), ranks_text(most->second),
                               describe(*op.entries.at(most->second.front())), fmt::join(theirs, ", ")),
                   op.first_ns});
    return;
  }
}

void find_divergences(const Operation& op, std::vector<Divergence>& all) {
  find_difference(op, all);
  const auto waiting =
      std::find_if(op.entries.begin(), op.entries.end(), [](const auto& e) { return e.second->waits(); });
  if (waiting == op.entries.end()) return;
  std::vector<int> ranks;
  for (const auto& [rank, entry] : op.entries)
    if (entry->waits()) ranks.push_back(rank);
  const std::string who =
      fmt::format("{}: {} called {}", describe(op.key), ranks_text(ranks), describe(*waiting->second));
  if (!op.never_came.empty())
    all.push_back({DivergenceKind::never_came, op.key.group, op.key.sequence, op.never_came,
                   fmt::format("{}, but {} never called it", who, ranks_text(op.never_came)), op.first_ns});
  if (!op.queued.empty())
    all.push_back({DivergenceKind::queued, op.key.group, op.key.sequence, op.queued,
                   fmt::format("{}, but {} had only queued it: work before it was not done", who,
                               ranks_text(op.queued)),
                   op.first_ns});
}

void look_at_files(const std::vector<FlightFile>& files, Comparison& result) {
  if (files.empty()) return;
  constexpr size_t kMostNamed = 100'000;  // a file may claim to be of millions
  for (int rank = 0; rank < files.front().size && result.without_file.size() < kMostNamed; ++rank)
    if (!file_of(files, rank)) result.without_file.push_back(rank);
  if (!result.without_file.empty())
    result.remarks.push_back(
        fmt::format("the files of {} are missing: their calls are unknown", ranks_text(result.without_file)));
  const auto [first, last] =
      std::minmax_element(files.begin(), files.end(),
                          [](const auto& a, const auto& b) { return a.written_wall_ns < b.written_wall_ns; });
  if (last->written_wall_ns - first->written_wall_ns > kOneFailure)
    result.remarks.push_back(fmt::format(
        "the file of rank {} was written {} minutes after that of rank {}: they may be of "
        "different failures",
        last->rank, (last->written_wall_ns - first->written_wall_ns) / 60'000'000'000, first->rank));
}

}  // namespace

const char* name_of(DivergenceKind kind) {
  constexpr EnumTable<DivergenceKind, 7> kNames{"communicator", "operation",  "purpose", "bytes",
                                                "arguments",    "never_came", "queued"};
  return kNames.name(kind);
}

Comparison compare(const std::vector<FlightFile>& files) {
  Comparison result;
  look_at_files(files, result);
  std::map<std::string, std::vector<int>> groups;
  std::map<std::string, int> told_by;
  for (const FlightFile& file : files)
    for (const FlightGroup& g : file.groups) {
      const auto [known, is_new] = groups.emplace(g.name, g.ranks);
      if (is_new) told_by[g.name] = file.rank;
      if (known->second != g.ranks)
        result.divergences.push_back({DivergenceKind::communicator,
                                      g.name,
                                      0,
                                      {file.rank},
                                      fmt::format("communicator '{}' has ranks {} on rank {}, but ranks {} "
                                                  "on rank {}: the ranks divided their "
                                                  "communicators differently",
                                                  printable(g.name), fmt::join(known->second, " "),
                                                  told_by[g.name], fmt::join(g.ranks, " "), file.rank),
                                      0});
    }
  std::map<OperationKey, Operation> by_key;
  for (const FlightFile& file : files)
    for (const FlightEntry& e : file.entries) {
      const OperationKey key = key_of(file, e);
      Operation& op = by_key[key];
      const int64_t time = file.wall(e.issued_ns);
      op.first_ns = op.entries.empty() ? time : std::min(op.first_ns, time);
      op.key = key;
      op.entries[file.rank] = &e;
    }
  for (auto& [key, op] : by_key) {
    find_absent(op, files, groups);
    find_divergences(op, result.divergences);
    result.operations.push_back(std::move(op));
  }
  std::stable_sort(result.operations.begin(), result.operations.end(),
                   [](const Operation& a, const Operation& b) { return a.first_ns < b.first_ns; });
  const auto weight = [](const Divergence& d) {
    return std::tuple(d.kind == DivergenceKind::never_came || d.kind == DivergenceKind::queued, d.time_ns,
                      d.kind);
  };
  std::stable_sort(result.divergences.begin(), result.divergences.end(),
                   [&](const Divergence& a, const Divergence& b) { return weight(a) < weight(b); });
  return result;
}

std::string describe(const FlightEntry& e) {
  std::string text = printable(e.op);
  const std::string purpose = e.purpose.empty() ? "" : " for " + printable(e.purpose);
  if (e.op == "barrier" || e.op == "split") return text + purpose;
  text += " (";
  if (e.op == "all_reduce" || e.op == "reduce_scatter") text += printable(e.reduce) + ", ";
  text += fmt::format("{}, {} elements, {} bytes", printable(e.dtype), e.elements, e.bytes);
  if (!e.counts.empty()) text += ", counts " + printable(e.counts);
  if (e.root >= 0) text += fmt::format(", root {}", e.root);
  return text + ")" + purpose;
}

std::string describe(const OperationKey& key) {
  const std::string name =
      printable(key.group) + (key.epoch > 0 ? fmt::format(" after recovery {}", key.epoch) : "");
  if (key.lane == Lane::split) return fmt::format("{} split #{}", name, key.sequence);
  if (key.lane == Lane::message)
    return fmt::format("{} #{} from rank {} to rank {}", name, key.sequence, key.from, key.to);
  return fmt::format("{} #{}", name, key.sequence);
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> stretches;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i > 2)
      stretches.push_back(fmt::format("{}-{}", ranks[i], ranks[end - 1]));
    else
      for (size_t k = i; k < end; ++k) stretches.push_back(std::to_string(ranks[k]));
    i = end;
  }
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(stretches, ", "));
}

}  // namespace sherd::tools
