// File of a flight recorder, read by `sherd trace`.
#include <fmt/format.h>

#include <map>

#include <nlohmann/json.hpp>

#include <sherd/comm/watch/flight_recorder.h>

namespace sherd::comm {
namespace {

using nlohmann::ordered_json;

ordered_json json_of(const FlightRecord& r) {
  return {{"number", r.number},
          {"group", r.group->name},
          {"epoch", r.epoch},
          {"sequence", r.sequence},
          {"op", r.op},
          {"purpose", r.purpose.text()},
          {"dtype", sherd::name_of(r.dtype)},
          {"elements", r.elements},
          {"bytes", r.elements * size_of(r.dtype)},
          {"reduce", name_of(r.reduce)},
          {"root", r.root},
          {"peer", r.peer},
          {"counts", r.counts == 0 ? "" : fmt::format("{:016x}", r.counts)},
          {"state", name_of(r.state)},
          {"issued_ns", r.issued_ns},
          {"started_ns", r.started_ns},
          {"finished_ns", r.finished_ns},
          {"started_wall_ns", r.started_wall_ns}};
}

ordered_json json_of(const GroupLabel& g) {
  return {{"name", g.name},
          {"ranks", g.world_ranks},
          {"epoch", g.epoch.load()},
          {"calls", g.calls.load()},
          {"splits", g.splits.load()}};
}

}  // namespace

const char* name_of(FlightRecord::State state) {
  switch (state) {
    case FlightRecord::State::queued:
      return "queued";
    case FlightRecord::State::running:
      return "running";
    case FlightRecord::State::handed:
      return "handed";
    case FlightRecord::State::done:
      return "done";
    case FlightRecord::State::failed:
      break;
  }
  return "failed";
}

// Returns the file's JSON. Records are copied under the lock and formatted without it: operations continue to
// record meanwhile.
std::string FlightRecorder::content(const std::string& cause) const {
  std::vector<FlightRecord> records;
  std::map<std::string, std::shared_ptr<const GroupLabel>> groups;
  int64_t recorded = 0;
  {
    std::lock_guard lock(mutex_);
    recorded = recorded_;
    const auto kept = std::min<int64_t>(recorded_, std::ssize(ring_));
    for (int64_t n = recorded_ - kept; n < recorded_; ++n)
      records.push_back(ring_[static_cast<size_t>(n) % ring_.size()]);
    // Groups without a record in the ring are listed, too: their counts show ranks that called nothing.
    for (const auto& weak : groups_)
      if (auto group = weak.lock()) groups.emplace(group->name, std::move(group));
  }
  // A record keeps the label of a group that is destroyed.
  for (const FlightRecord& r : records) groups.emplace(r.group->name, r.group);
  ordered_json j = {{"sherd_flight", 1},
                    {"rank", world_rank_},
                    {"size", world_size_},
                    {"launch", options_.launch},
                    {"cause", cause},
                    {"written_ns", now_ns<std::chrono::steady_clock>()},
                    {"written_wall_ns", now_ns<std::chrono::system_clock>()},
                    {"recorded", recorded},
                    {"groups", ordered_json::array()},
                    {"records", ordered_json::array()}};
  for (const auto& [name, group] : groups) j["groups"].push_back(json_of(*group));
  for (const FlightRecord& r : records) j["records"].push_back(json_of(r));
  // Texts may hold bytes that are not UTF-8.
  return j.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace sherd::comm
