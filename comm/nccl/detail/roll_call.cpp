#include <sherd/comm/nccl/detail/roll_call.h>

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <utility>

#include <sherd/kernels/device/error.h>

namespace sherd::nccl {
namespace {

using Clock = std::chrono::steady_clock;

// Watchdogs answer within a few polls.
constexpr std::chrono::milliseconds kRollCallTime{1500};

std::string encode_progress(const Progress& p) { return fmt::format("{} {}", p.calls, p.last); }
Progress decode_progress(const std::string& text) {
  const size_t space = text.find(' ');
  return {std::strtoll(text.c_str(), nullptr, 10), space == std::string::npos ? "" : text.substr(space + 1)};
}

std::string clause(const std::map<int, Progress>& answers, const std::vector<int>& world_ranks,
                   int64_t calls) {
  std::vector<std::string> behind;
  std::vector<int> silent;
  for (int rank : world_ranks) {
    const auto answer = answers.find(rank);
    if (answer == answers.end()) {
      silent.push_back(rank);
    } else if (answer->second.calls < calls) {
      const std::string& last = answer->second.last;
      behind.push_back(last.empty() ? fmt::format("rank {} has called nothing there", rank)
                                    : fmt::format("rank {} came to {}", rank, last));
    }
  }
  std::vector<std::string> parts;
  if (!behind.empty()) parts.push_back(fmt::format("it waits for others: {}", fmt::join(behind, ", ")));
  if (!silent.empty())
    parts.push_back(
        fmt::format("rank{} {} did not answer", silent.size() > 1 ? "s" : "", fmt::join(silent, ", ")));
  if (parts.empty())
    return "every rank of its group has called it or something else in its place, and a GPU or the network "
           "does not finish it";
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace

RollCall::RollCall(Store& store, const std::string& world, int world_rank, Find find)
    : store_(store), question_(world + "/late"), world_rank_(world_rank), find_(std::move(find)) {}

std::string RollCall::key_of(const std::string& communicator, int world_rank) const {
  return fmt::format("{}/progress/{}", communicator, world_rank);
}

void RollCall::answer_for(const std::string& communicator) {
  if (answered_.exchange(true)) return;
  store_.set(key_of(communicator, world_rank_), encode_progress(find_(communicator)));
}

void RollCall::answer() {
  if (answered_.load()) return;
  if (const auto communicator = store_.get(question_)) answer_for(*communicator);
}

std::string RollCall::ask(const std::string& communicator, const std::vector<int>& world_ranks, int64_t calls,
                          const std::function<bool()>& stop) {
  if (calls == 0 || world_ranks.size() < 2) return "";
  try {
    const bool first = store_.set_once(question_, communicator) == communicator;
    answer();
    std::map<int, Progress> answers;
    const auto deadline = Clock::now() + kRollCallTime;
    for (Backoff backoff; !stop() && Clock::now() < deadline; backoff.sleep()) {
      if (!first) continue;  // another communicator was asked about: its report comes
      for (int rank : world_ranks) {
        if (answers.contains(rank)) continue;
        if (const auto text = store_.get(key_of(communicator, rank))) answers[rank] = decode_progress(*text);
      }
      if (answers.size() == world_ranks.size()) break;
    }
    return first && !stop() ? clause(answers, world_ranks, calls) : "";
  } catch (const CommError&) {  // the store is lost, which is a failure of its own
    return "";
  }
}

}  // namespace sherd::nccl
