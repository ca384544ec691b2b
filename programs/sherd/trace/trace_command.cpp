#include "trace_command.h"

#include <algorithm>
#include <limits>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/base/enum_table.h>
#include <sherd/base/error.h>

#include "arguments.h"
#include "text.h"
#include "trace_compare.h"
#include "trace_times.h"

namespace sherd::tools {
namespace {

using nlohmann::ordered_json;

constexpr const char* kTraceHelp =
    R"(FILE is flight_rank_00003.json of one rank, or a folder that holds those of several. Ranks write them when a launch
fails whose flight_recorder.folder is given (train_gpt --flight-recorder FOLDER): each its last operations.

For example, rank 1 of 3 left its loop one step early:

  $ train_gpt ... --ranks 3 --flight-recorder flights
  train_gpt: ... rank 1 has returned from its body and will not call it ...
  $ sherd trace flights
  3 of 3 ranks; rank 0 failed with: all_reduce #9 ... for the gradients of unit 'blocks.1' on rank 0: rank 1 has ...

  before ms  operation                                                      ranks
      812.31  world #8    all_reduce (sum, f32, 16 elements, 64 bytes) ...   ranks 0-2 done
        2.11  world #9    all_reduce (sum, f32, 16 elements, 64 bytes) ...   ranks 0, 2 running, rank 1 never called it

  first divergence: world #9: ranks 0, 2 came to all_reduce ... for the gradients of unit 'blocks.1', but rank 1 never called it

An operation is named by its communicator, world/2.0 being group 0 of the second division of world, and by its number there;
the time is before the files were written. Divergences are ranks that called something else, for another unit, or with other
sizes or arguments, and ranks that did not come while others waited: never called it, or queued it behind work that was not
done. The first is likely to be the cause of the others.

A run that is started again writes to the same folder, and a rank that is killed writes nothing: its file may be of an earlier
launch. Such files are left out, and named.

--json prints one object:
  files        path, rank, size, cause (why the rank's launch failed), recorded (operations of the rank, of which the last
               are in the file)
  left_out     paths of files of earlier launches
  without_file ranks of the world of which no file was given; remarks: lines for people
  operations   the last ones, by time: communicator, epoch (recoveries before), lane (collective, split, message), from and to
               (of a message), sequence, before_ms, ranks [{rank, op, purpose, dtype, elements, bytes, state}], never_came,
               queued. state: queued, running, handed (to a GPU), done or failed
  divergences  kind (communicator, operation, purpose, bytes, arguments, never_came or queued), communicator, sequence, ranks
               (the odd ones), text; the first one is null when there is none, as first_divergence

Exit codes: 0 when the files were read, whatever they say; 1 for a file that cannot be read or is none of a flight recorder;
2 for wrong flags.)";

double before_ms(const Operation& op, int64_t written) {
  return static_cast<double>(written - op.first_ns) / 1e6;
}

int64_t written_last(const std::vector<FlightFile>& files) {
  int64_t time = 0;
  for (const FlightFile& f : files) time = std::max(time, f.written_wall_ns);
  return time;
}

const char* name_of(OperationKey::Lane lane) {
  constexpr EnumTable<OperationKey::Lane, 3> kNames{"collective", "split", "message"};
  return kNames.name(lane);
}

ordered_json json_of(const Operation& op, int64_t written) {
  ordered_json j = {{"communicator", op.key.group}, {"epoch", op.key.epoch}, {"lane", name_of(op.key.lane)}};
  if (op.key.lane == OperationKey::Lane::message) {
    j["from"] = op.key.from;
    j["to"] = op.key.to;
  }
  j["sequence"] = op.key.sequence;
  j["before_ms"] = before_ms(op, written);
  j["ranks"] = ordered_json::array();
  for (const auto& [rank, e] : op.entries)
    j["ranks"].push_back({{"rank", rank},
                          {"op", e->op},
                          {"purpose", e->purpose},
                          {"dtype", e->dtype},
                          {"elements", e->elements},
                          {"bytes", e->bytes},
                          {"state", e->state}});
  j["never_came"] = op.never_came;
  j["queued"] = op.queued;
  return j;
}

ordered_json json_of(const Divergence& d) {
  return {{"kind", name_of(d.kind)},
          {"communicator", d.group},
          {"sequence", d.sequence},
          {"ranks", d.ranks},
          {"text", d.text}};
}

std::string json_text(const FlightFiles& read, const Comparison& c, size_t begin) {
  const std::vector<FlightFile>& files = read.files;
  ordered_json j = {{"files", ordered_json::array()}};
  for (const FlightFile& f : files)
    j["files"].push_back(
        {{"path", f.path}, {"rank", f.rank}, {"size", f.size}, {"cause", f.cause}, {"recorded", f.recorded}});
  j["left_out"] = read.of_earlier_launches;
  j["without_file"] = c.without_file;
  j["remarks"] = c.remarks;
  j["operations"] = ordered_json::array();
  for (size_t i = begin; i < c.operations.size(); ++i)
    j["operations"].push_back(json_of(c.operations[i], written_last(files)));
  j["first_divergence"] = c.divergences.empty() ? ordered_json() : json_of(c.divergences.front());
  j["divergences"] = ordered_json::array();
  for (const Divergence& d : c.divergences) j["divergences"].push_back(json_of(d));
  return j.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string left_out(const FlightFiles& read) {
  constexpr size_t kMostNamed = 8;
  const std::vector<std::string>& paths = read.of_earlier_launches;
  std::string names;
  for (size_t i = 0; i < std::min(paths.size(), kMostNamed); ++i)
    names += (i == 0 ? "" : ", ") + printable(paths[i]);
  if (paths.size() > kMostNamed) names += fmt::format(" and {} more", paths.size() - kMostNamed);
  return fmt::format("left out, because {} of an earlier launch than the others: {}",
                     paths.size() > 1 ? "they are" : "it is", names);
}

/// "ranks 0, 2 running, rank 1 never called it"
std::string standing(const Operation& op, const std::vector<int>& of_these) {
  std::map<std::string, std::vector<int>> by_state;
  for (const int rank : of_these) by_state[op.entries.at(rank)->state].push_back(rank);
  std::string text;
  for (const auto& [state, ranks] : by_state)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", ranks_text(ranks), printable(state));
  return text;
}

/// A line for each different call among the ranks.
void print(std::ostream& out, const Operation& op, int64_t written) {
  std::map<std::string, std::vector<int>> calls;
  std::vector<std::string> order;
  for (const auto& [rank, e] : op.entries) {
    const std::string call = describe(*e);
    if (calls[call].empty()) order.push_back(call);
    calls[call].push_back(rank);
  }
  for (const std::string& call : order) {
    const bool first = call == order.front(), last = call == order.back();
    std::string ranks = standing(op, calls[call]);
    if (last && !op.never_came.empty())
      ranks += fmt::format(", {} never called it", ranks_text(op.never_came));
    out << fmt::format("{:>11}  {:<14} {:<70} {}\n",
                       first ? fmt::format("{:.2f}", before_ms(op, written)) : "",
                       first ? describe(op.key) : "", call, ranks);
  }
}

void print(std::ostream& out, const std::vector<FlightFile>& files, const Comparison& c, size_t begin) {
  const FlightFile& first = *std::min_element(
      files.begin(), files.end(),
      [](const FlightFile& a, const FlightFile& b) { return a.written_wall_ns < b.written_wall_ns; });
  out << fmt::format("{} of {} ranks; rank {} failed with: {}\n", files.size(), first.size, first.rank,
                     printable(first.cause));
  for (const std::string& remark : c.remarks) out << "note: " << remark << "\n";
  out << fmt::format("\n{:>11}  {:<14} {:<70} {}\n", "before ms", "where", "operation", "ranks");
  const int64_t written = written_last(files);
  for (size_t i = begin; i < c.operations.size(); ++i) print(out, c.operations[i], written);
  if (begin > 0)
    out << fmt::format("({} earlier operations are left out; --last {} shows them)\n", begin,
                       c.operations.size());
  constexpr size_t kMostMore = 5;
  if (c.divergences.empty()) {
    out << "\nno divergence: all ranks made the same calls, and none waited for a missing rank\n";
    return;
  }
  out << "\nfirst divergence: " << c.divergences.front().text << "\n";
  for (size_t i = 1; i < std::min(c.divergences.size(), kMostMore + 1); ++i)
    out << "then: " << c.divergences[i].text << "\n";
  if (c.divergences.size() > kMostMore + 1)
    out << fmt::format("and {} more\n", c.divergences.size() - kMostMore - 1);
}

}  // namespace

CLI::App* TraceCommand::add_to(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("trace", "compare what the ranks of a launch that failed did last");
  sub->add_option("files", files, "of ranks, or folders of them, see below")->required()->type_name("FILE");
  sub->add_option("--last", last, "operations to show")
      ->type_name("N")
      ->capture_default_str()
      ->check(whole_number(1, std::numeric_limits<int32_t>::max()));
  CLI::Option* const as_json = sub->add_flag("--json", json, "print JSON instead of a table");
  sub->add_flag("--times", times, "FILEs are traces of sherd plan or train_gpt: times of a step by operation")
      ->excludes(as_json);
  sub->footer(kTraceHelp);
  return sub;
}

void TraceCommand::run(std::ostream& out) const {
  if (times)
    out << times_table(files);
  else
    compare_flights(out);
  if (!out.flush()) throw IoError("the output could not be written; is the disk full, or the reader gone?");
}

void TraceCommand::compare_flights(std::ostream& out) const {
  const FlightFiles read = read_flight_files(files);
  Comparison compared = compare(read.files);
  if (!read.of_earlier_launches.empty()) compared.remarks.insert(compared.remarks.begin(), left_out(read));
  const auto shown = static_cast<size_t>(last);
  const size_t begin = compared.operations.size() > shown ? compared.operations.size() - shown : 0;
  if (json)
    out << json_text(read, compared, begin);
  else
    print(out, read.files, compared, begin);
}

}  // namespace sherd::tools
