#include "trace_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>

#include "text.h"

namespace sherd::tools {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int64_t kMostRanks = int64_t{1} << 24;
constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 4;  // sums of two times fit

/// Takes values out of an object, each at a place that messages name.
class Fields {
 public:
  Fields(const std::string& path, std::string place, const json& object)
      : path_(path), place_(std::move(place)), object_(object) {
    if (!object.is_object()) refuse("", "no object");
  }

  int64_t number(const char* name, int64_t low, int64_t high) const {
    const json& value = at(name);
    // A recorder writes neither floats nor numbers beyond 63 bits.
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(kMost));
    if (!fits || value.get<int64_t>() < low || value.get<int64_t>() > high)
      refuse(name, fmt::format("no whole number from {} to {}", low, high));
    return value.get<int64_t>();
  }
  std::string text(const char* name) const {
    const json& value = at(name);
    if (!value.is_string()) refuse(name, "no text");
    return value.get<std::string>();
  }
  std::string text_or_none(const char* name) const {
    return object_.contains(name) ? text(name) : std::string();
  }
  const json& list(const char* name) const {
    const json& value = at(name);
    if (!value.is_array()) refuse(name, "no list");
    return value;
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const {
    throw InvalidArgument(
        fmt::format("{}: {}{}{} is {}; is it a file that sherd's flight recorder has written whole?", path_,
                    place_, !place_.empty() && !name.empty() ? "." : "",
                    name.empty() && place_.empty() ? "the whole" : name, what));
  }

 private:
  const json& at(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) refuse(name, "missing");
    return *found;
  }

  const std::string& path_;
  const std::string place_;
  const json& object_;
};

FlightGroup group_of(const Fields& from, int size) {
  FlightGroup g;
  g.name = from.text("name");
  for (const json& rank : from.list("ranks")) {
    if (!rank.is_number_integer() || (rank.is_number_unsigned() && rank.get<uint64_t>() > kMostRanks) ||
        rank.get<int64_t>() < 0 || rank.get<int64_t>() >= size)
      from.refuse("ranks", fmt::format("no list of ranks below {}", size));
    g.ranks.push_back(rank.get<int>());
  }
  if (g.ranks.empty()) from.refuse("ranks", "empty");
  g.epoch = from.number("epoch", 0, kMost);
  g.calls = from.number("calls", 0, kMost);
  g.splits = from.number("splits", 0, kMost);
  return g;
}

FlightEntry entry_of(const Fields& from, const FlightFile& file) {
  FlightEntry e;
  e.number = from.number("number", 1, kMost);
  const std::string group = from.text("group");
  const FlightGroup* const found = file.find_group(group);
  if (!found) from.refuse("group", fmt::format("'{}', which is not among the groups", printable(group)));
  e.group = static_cast<size_t>(found - file.groups.data());
  e.epoch = from.number("epoch", 0, kMost);
  e.sequence = from.number("sequence", 0, kMost);
  e.op = from.text("op");
  e.purpose = from.text("purpose");
  e.dtype = from.text("dtype");
  e.reduce = from.text("reduce");
  e.counts = from.text("counts");
  e.state = from.text("state");
  e.elements = from.number("elements", 0, kMost);
  e.bytes = from.number("bytes", 0, kMost);
  const int64_t ranks = std::ssize(found->ranks);
  e.root = static_cast<int>(from.number("root", -1, ranks - 1));
  e.peer = static_cast<int>(from.number("peer", e.message() ? 0 : -1, ranks - 1));
  e.issued_ns = from.number("issued_ns", 0, kMost);
  e.started_ns = from.number("started_ns", 0, kMost);
  e.finished_ns = from.number("finished_ns", 0, kMost);
  return e;
}

std::string read_text(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) throw IoError(fmt::format("{}: is a folder", path.string()));
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad())
    throw IoError(fmt::format("{}: {}", path.string(), errno != 0 ? std::strerror(errno) : "cannot be read"));
  return text;
}

json parsed(const std::string& path, const std::string& text) {
  try {
    return read_json(text);
  } catch (const JsonError& e) {
    throw InvalidArgument(fmt::format("{}: the file {}", path, e.what()));
  }
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
  const json j = parsed(file.path, read_text(path));
  const Fields top(file.path, "", j);
  if (top.number("sherd_flight", 0, kMost) != 1)
    top.refuse("sherd_flight", "not 1: the file is of another version of sherd");
  file.size = static_cast<int>(top.number("size", 1, kMostRanks));
  file.rank = static_cast<int>(top.number("rank", 0, file.size - 1));
  file.launch = top.text_or_none("launch");
  file.cause = top.text("cause");
  file.recorded = top.number("recorded", 0, kMost);
  file.written_ns = top.number("written_ns", 0, kMost);
  file.written_wall_ns = top.number("written_wall_ns", 0, kMost);
  for (const json& g : top.list("groups"))
    file.groups.push_back(
        group_of(Fields(file.path, fmt::format("groups[{}]", file.groups.size()), g), file.size));
  for (const json& r : top.list("records"))
    file.entries.push_back(
        entry_of(Fields(file.path, fmt::format("records[{}]", file.entries.size()), r), file));
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
