#include "trace_times.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_object.h>
#include <sherd/base/error.h>
#include <sherd/base/printable.h>

namespace sherd::tools {
namespace {

using nlohmann::json;
using Row = std::pair<std::string, std::string>;  // stream, operation

struct Times {
  std::map<Row, double> us;
  int64_t steps = 0;  // marks
};

Times times_of(const json& events) {
  std::map<int64_t, std::string> streams;
  for (const json& e : events)
    if (e.at("ph") == "M" && e.at("name") == "thread_name" && e.at("pid") == 0)
      streams[e.at("tid")] = e.at("args").at("name");
  Times t;
  for (const json& e : events) {
    if (e.at("ph") == "i" && e.at("name").get<std::string>().starts_with("step")) ++t.steps;
    if (e.at("ph") != "X" || e.at("pid") != 0) continue;
    t.us[{streams.at(e.at("tid")), e.at("name")}] += e.at("dur").get<double>();
  }
  return t;
}

Times read_times(const std::string& path) {
  const std::string text = read_text(path, "name a trace");
  try {
    return times_of(json::parse(text).at("traceEvents"));
  } catch (const std::exception&) {
    throw InvalidArgument(fmt::format(
        "{}: is not a trace; name files of sherd plan --trace and of train_gpt --trace", printable(path)));
  }
}

}  // namespace

std::string times_table(const std::vector<std::string>& paths) {
  std::map<Row, std::vector<double>> rows;  // ms of a step, by file
  std::vector<double> sums(paths.size()), rest(paths.size());
  for (size_t i = 0; i < paths.size(); ++i) {
    const Times t = read_times(paths[i]);
    for (const auto& [row, us] : t.us) {
      std::vector<double>& ms = rows[row];
      ms.resize(paths.size());
      ms[i] = us / 1e3 / static_cast<double>(std::max<int64_t>(1, t.steps));
      sums[i] += ms[i];
    }
  }
  std::vector<std::pair<Row, std::vector<double>>> sorted(rows.begin(), rows.end());
  std::ranges::stable_sort(sorted, std::greater<>(),
                           [](const auto& row) { return std::ranges::max(row.second); });

  const auto line = [](const Row& row, const std::vector<double>& ms) {
    std::string text = fmt::format("  {:<16}{:<28}", printable(row.first), printable(row.second));
    for (const double m : ms) text += fmt::format("{:>24.3f}", m);
    return text + "\n";
  };
  std::string text = fmt::format("  {:<16}{:<28}", "stream", "operation, ms of a step");
  for (const std::string& path : paths)
    text += fmt::format("{:>24}", printable(std::filesystem::path(path).filename().string()));
  text += "\n";
  for (const auto& [row, ms] : sorted) {
    bool small = true;
    for (size_t i = 0; i < ms.size(); ++i) small = small && ms[i] < sums[i] / 1000;
    if (!small) text += line(row, ms);
    for (size_t i = 0; small && i < ms.size(); ++i) rest[i] += ms[i];
  }
  return text + line({"", "others"}, rest) + line({"", "sum of all streams"}, sums);
}

}  // namespace sherd::tools
