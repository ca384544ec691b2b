#include <sherd/comm/watch/progress.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <locale>
#include <sstream>
#include <utility>

#include <sherd/base/error.h>
#include <sherd/comm/core/detail/timeouts.h>

namespace sherd::comm {
namespace {

// Answers come within a few polls.
constexpr std::chrono::milliseconds kAnswerTime{1500};

// One in so many polls checks for a question.
constexpr int64_t kPollsPerAnswer = 4;

}  // namespace

Progress::Progress(std::shared_ptr<Store> store, std::string world, int world_rank)
    : store_(std::move(store)), world_(std::move(world)), world_rank_(world_rank) {}

int64_t Progress::begin(const std::string& key, const std::string& where) {
  std::lock_guard lock(mutex_);
  Count& count = counts_[key];
  count.last = where;
  std::ranges::replace(count.last, '\n', ' ');  // text() has a line for it
  // The n-th begun operation of a key is the same collective on all ranks, so numbers compare across ranks.
  return ++count.number;
}

std::string Progress::last(const std::string& key) const {
  std::lock_guard lock(mutex_);
  const auto count = counts_.find(key);
  return count == counts_.end() ? "" : count->second.last;
}

std::string Progress::text() const {
  std::lock_guard lock(mutex_);
  std::string lines;
  for (const auto& [key, count] : counts_) lines += fmt::format("{} {}\n{}\n", count.number, key, count.last);
  return lines;
}

Progress::Counts Progress::parse(std::istream& text) {
  Counts counts;
  Count count;
  text.imbue(std::locale::classic());
  for (std::string key;
       text >> count.number && text.get() && std::getline(text, key) && std::getline(text, count.last);)
    counts[key] = count;
  return counts;
}

void Progress::leave() {
  // Departures have consecutive numbers in the store, so that each rank reads only those it has not seen.
  const int64_t place = store_->add(world_ + "/ended", 1) - 1;
  // One value with rank and counts: readers see both or neither. The counts separate ranks that left before a
  // call from those that left after it.
  store_->set(fmt::format("{}/ended/{}", world_, place), fmt::format("{}\n{}", world_rank_, text()));
}

// Runs on the watchdog's thread. In the usual case one request for a missing departure, and one for a
// question in every fourth poll.
void Progress::poll() {
  while (const auto departure =
             store_->get(fmt::format("{}/ended/{}", world_, departures_seen_), kStoreAnswers)) {
    ++departures_seen_;
    std::istringstream lines(*departure);
    lines.imbue(std::locale::classic());
    int rank = -1;
    lines >> rank;
    std::lock_guard lock(mutex_);
    left_[rank] = parse(lines);
  }
  if (++polls_ % kPollsPerAnswer == 0 && !answered_.load() && store_->get(world_ + "/late")) answer();
}

void Progress::answer() {
  // A stream's worker in find_stragglers() and the watchdog in poll() may both call it; one answers. One
  // answer per launch suffices, since the late call fails it.
  if (!answered_.exchange(true)) store_->set(fmt::format("{}/progress/{}", world_, world_rank_), text());
}

std::vector<int> Progress::left_before(const std::vector<int>& ranks, const std::string& key,
                                       int64_t number) const {
  std::lock_guard lock(mutex_);
  std::vector<int> gone;
  for (const int rank : ranks) {
    const auto left = left_.find(rank);
    if (left == left_.end()) continue;
    const auto begun = left->second.find(key);
    // A rank that began the operation and left afterwards still takes part: it has issued the operation.
    if (number == 0 || begun == left->second.end() || begun->second.number < number) gone.push_back(rank);
  }
  return gone;
}

std::string Progress::find_stragglers(const std::string& key, const std::vector<int>& world_ranks,
                                      int64_t number, const std::function<bool()>& stop) {
  if (number == 0 || world_ranks.size() < 2) return "";
  std::map<int, Count> answers;
  try {
    store_->set(world_ + "/late", "");
    // Answers itself: this may be the watchdog's thread, which polls nothing meanwhile.
    answer();
    const auto deadline = std::chrono::steady_clock::now() + kAnswerTime;
    for (Backoff backoff; answers.size() < world_ranks.size(); backoff.sleep()) {
      if (stop()) return "";
      if (std::chrono::steady_clock::now() > deadline) break;
      // Reads all answers again in each round: early answers cost a few more requests, in an error path only.
      for (const int rank : world_ranks)
        if (const auto its_text = store_->get(fmt::format("{}/progress/{}", world_, rank))) {
          std::istringstream lines(*its_text);
          answers[rank] = parse(lines)[key];
        }
    }
  } catch (const CommError&) {  // the store is lost, which is a failure of its own
    return "";
  }
  std::vector<std::string> behind, parts;
  std::vector<int> silent;
  for (const int rank : world_ranks) {
    const auto answer = answers.find(rank);
    if (answer == answers.end())
      silent.push_back(rank);
    else if (const auto& [begun, last] = answer->second; begun < number)
      behind.push_back(last.empty() ? fmt::format("rank {} has called nothing there", rank)
                                    : fmt::format("rank {} came to {}", rank, last));
  }
  if (!behind.empty()) parts.push_back(fmt::format("it waits for others: {}", fmt::join(behind, ", ")));
  if (!silent.empty())
    parts.push_back(
        fmt::format("rank{} {} did not answer", silent.size() > 1 ? "s" : "", fmt::join(silent, ", ")));
  if (!parts.empty()) return fmt::format("{}", fmt::join(parts, "; "));
  // All have begun operation `number`; only the device or the wire is left as the cause.
  return "every rank of its group has called it or something else in its place, and a GPU or the network "
         "does not "
         "finish it";
}

}  // namespace sherd::comm
