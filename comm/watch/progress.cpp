#include <sherd/comm/watch/progress.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <sstream>
#include <utility>

#include <sherd/comm/core/detail/timeouts.h>
#include <sherd/kernels/device/error.h>

namespace sherd::comm {
namespace {

// Answers come within a few polls.
constexpr std::chrono::milliseconds kAnswerTime{1500};

// One in so many polls checks for a question.
constexpr int64_t kPollsPerAnswer = 4;

}  // namespace

Progress::Progress(std::shared_ptr<Store> store, std::string world, int world_rank)
    : store_(std::move(store)),
      departures_(world + "/ended"),
      question_(world + "/late"),
      world_rank_(world_rank) {}

int64_t Progress::begin(const std::string& key, const std::string& where) {
  std::lock_guard lock(mutex_);
  Count& count = counts_[key];
  count.last = where;
  return ++count.number;
}

std::string Progress::last(const std::string& key) const {
  std::lock_guard lock(mutex_);
  const auto count = counts_.find(key);
  return count == counts_.end() ? "" : count->second.last;
}

void Progress::leave() {
  std::string text = fmt::format("{}\n", world_rank_);
  {
    std::lock_guard lock(mutex_);
    for (const auto& [key, count] : counts_) text += fmt::format("{} {}\n", count.number, key);
  }
  // Departures have consecutive numbers in the store, so that each rank reads only those it has not seen.
  const int64_t place = store_->add(departures_, 1) - 1;
  store_->set(fmt::format("{}/{}", departures_, place), text);
}

void Progress::poll() {
  while (const auto text = store_->get(fmt::format("{}/{}", departures_, departures_seen_), kStoreAnswers)) {
    ++departures_seen_;
    std::istringstream lines(*text);
    int rank = -1;
    lines >> rank;
    std::lock_guard lock(mutex_);
    auto& numbers = left_[rank];
    int64_t number = 0;
    for (std::string key; lines >> number && lines.get() && std::getline(lines, key);) numbers[key] = number;
  }
  if (++polls_ % kPollsPerAnswer == 0) answer();
}

std::vector<int> Progress::left_before(const std::vector<int>& ranks, const std::string& key,
                                       int64_t number) const {
  std::lock_guard lock(mutex_);
  std::vector<int> gone;
  for (const int rank : ranks) {
    const auto left = left_.find(rank);
    if (left == left_.end()) continue;
    const auto begun = left->second.find(key);
    if (number == 0 || begun == left->second.end() || begun->second < number) gone.push_back(rank);
  }
  return gone;
}

std::string Progress::answer_key(const std::string& key, int world_rank) const {
  return fmt::format("{}/progress/{}", key, world_rank);
}

void Progress::answer() {
  if (answered_.load()) return;
  const auto key = store_->get(question_);
  if (!key || answered_.exchange(true)) return;
  Count count;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = counts_.find(*key); found != counts_.end()) count = found->second;
  }
  store_->set(answer_key(*key, world_rank_), fmt::format("{} {}", count.number, count.last));
}

std::string Progress::find_stragglers(const std::string& key, const std::vector<int>& world_ranks,
                                      int64_t number, const std::function<bool()>& stop) {
  if (number == 0 || world_ranks.size() < 2) return "";
  std::map<int, Count> answers;
  try {
    const bool first = store_->set_once(question_, key) == key;
    answer();
    const auto deadline = std::chrono::steady_clock::now() + kAnswerTime;
    for (Backoff backoff; !stop() && std::chrono::steady_clock::now() < deadline; backoff.sleep()) {
      if (!first) continue;  // the question is about another communicator: its report comes
      for (const int rank : world_ranks)
        if (const auto text = answers.contains(rank) ? std::nullopt : store_->get(answer_key(key, rank))) {
          std::istringstream line(*text);
          Count& count = answers[rank];
          line >> count.number;
          line.get();
          std::getline(line, count.last);
        }
      if (answers.size() == world_ranks.size()) break;
    }
    if (!first || stop()) return "";
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
  return "every rank of its group has called it or something else in its place, and a GPU or the network "
         "does not "
         "finish it";
}

}  // namespace sherd::comm
