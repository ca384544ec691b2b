#include "trace_file.h"

#include <algorithm>
#include <limits>
#include <map>

#include <fmt/format.h>

#include <sherd/base/detail/json_object.h>
#include <sherd/base/error.h>

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostRanks = int64_t{1} << 24;
constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 4;  // sums of two times fit
constexpr const char* kTraceRemedy = "give a complete file of sherd's flight recorder";

FlightGroup group_of(JsonObject& from, int size) {
  FlightGroup g;
  g.name = from.text("name", std::nullopt);
  for (const int64_t rank : from.integers("ranks", 0, size - 1, 1)) g.ranks.push_back(static_cast<int>(rank));
  g.epoch = from.integer("epoch", std::nullopt, 0, kMost);
  g.calls = from.integer("calls", std::nullopt, 0, kMost);
  g.splits = from.integer("splits", std::nullopt, 0, kMost);
  return g;
}

FlightEntry entry_of(JsonObject& from, const FlightFile& file) {
  const auto count = [&](const char* key) { return from.integer(key, std::nullopt, 0, kMost); };
  FlightEntry e;
  e.number = from.integer("number", std::nullopt, 1, kMost);
  const FlightGroup* const found = file.find_group(from.text("group", std::nullopt));
  if (!found && !from.refused("group")) from.refuse("group", "a name among the groups is needed");
  if (!found) return e;
  e.group = static_cast<size_t>(found - file.groups.data());
  e.epoch = count("epoch");
  e.sequence = count("sequence");
  e.op = from.text("op", std::nullopt);
  e.purpose = from.text("purpose", std::nullopt);
  e.dtype = from.text("dtype", std::nullopt);
  e.reduce = from.text("reduce", std::nullopt);
  e.counts = from.text("counts", std::nullopt);
  e.state = from.text("state", std::nullopt);
  e.elements = count("elements");
  e.bytes = count("bytes");
  const int64_t last = std::ssize(found->ranks) - 1;
  e.root = static_cast<int>(from.integer("root", std::nullopt, -1, last));
  e.peer = static_cast<int>(from.integer("peer", std::nullopt, e.message() ? 0 : -1, last));
  e.issued_ns = count("issued_ns");
  e.started_ns = count("started_ns");
  e.finished_ns = count("finished_ns");
  return e;
}

}  // namespace

const FlightGroup* FlightFile::find_group(const std::string& name) const {
  const auto found =
      std::find_if(groups.begin(), groups.end(), [&](const FlightGroup& g) { return g.name == name; });
  return found == groups.end() ? nullptr : &*found;
}

FlightFile read_flight_file(const fs::path& path) {
  FlightFile file;
  file.path = path.string();
  JsonObject top = JsonObject::parse(read_text(file.path, "name a file of sherd's flight recorder"),
                                     file.path, kTraceRemedy);
  const auto count = [&](const char* key) { return top.integer(key, std::nullopt, 0, kMost); };
  if (!top.has("sherd_flight") || top.integer("sherd_flight", std::nullopt, 1, kMost) != 1)
    top.refuse("sherd_flight", top.has("sherd_flight")
                                   ? "1 is needed; the file is of another version of sherd"
                                   : "files of sherd's flight recorder have it");
  top.require_none();
  file.size = static_cast<int>(top.integer("size", std::nullopt, 1, kMostRanks));
  file.rank = static_cast<int>(top.integer("rank", std::nullopt, 0, file.size - 1));
  file.launch = top.text("launch", "");
  file.cause = top.text("cause", std::nullopt);
  file.recorded = count("recorded");
  file.written_ns = count("written_ns");
  file.written_wall_ns = count("written_wall_ns");
  top.each("groups", 0, [&](JsonObject& group) { file.groups.push_back(group_of(group, file.size)); });
  top.each("records", 0, [&](JsonObject& record) { file.entries.push_back(entry_of(record, file)); });
  top.require_none();
  return file;
}

namespace {

std::vector<fs::path> files_of(const std::vector<std::string>& paths) {
  std::vector<fs::path> wanted;
  for (const std::string& given : paths) {
    std::error_code error;
    if (!fs::is_directory(given, error)) {
      wanted.emplace_back(given);
      continue;
    }
    const size_t before = wanted.size();
    for (fs::directory_iterator at(given, error), end; !error && at != end; at.increment(error)) {
      const std::string name = at->path().filename().string();
      if (name.starts_with("flight_rank_") && name.ends_with(".json")) wanted.push_back(at->path());
    }
    if (error) throw IoError(fmt::format("{}: {}", given, error.message()));
    if (wanted.size() == before)
      throw InvalidArgument(
          fmt::format("{}: holds no flight_rank_*.json; they are written when a launch with a flight "
                      "recorder fails",
                      given));
  }
  return wanted;
}

}  // namespace

FlightFiles read_flight_files(const std::vector<std::string>& paths) {
  std::vector<FlightFile> all;
  for (const fs::path& path : files_of(paths)) all.push_back(read_flight_file(path));
  const auto newest = std::max_element(all.begin(), all.end(), [](const FlightFile& a, const FlightFile& b) {
    return a.written_wall_ns < b.written_wall_ns;
  });
  const std::string launch = newest == all.end() ? "" : newest->launch;
  FlightFiles result;
  std::map<int, FlightFile> by_rank;
  for (FlightFile& file : all) {
    if (file.launch != launch) {
      result.of_earlier_launches.push_back(file.path);
      continue;
    }
    if (!by_rank.empty() && by_rank.begin()->second.size != file.size)
      throw InvalidArgument(
          fmt::format("{} is of a world of {} ranks, {} of one of {}; give the files of one run", file.path,
                      file.size, by_rank.begin()->second.path, by_rank.begin()->second.size));
    const int rank = file.rank;
    const std::string path = file.path;
    const auto [other, is_new] = by_rank.emplace(rank, std::move(file));
    if (!is_new)
      throw InvalidArgument(fmt::format("{} and {} are both of rank {}; give the files of one run, each once",
                                        path, other->second.path, rank));
  }
  for (auto& [rank, file] : by_rank) result.files.push_back(std::move(file));
  return result;
}

}  // namespace sherd::tools
