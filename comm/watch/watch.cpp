#include <sherd/comm/watch/watch.h>

#include <fmt/format.h>

#include <utility>

namespace sherd::comm {

Watch::Watch(std::vector<std::shared_ptr<FlightRecorder>> recorders) : recorders_(std::move(recorders)) {
  for (const auto& recorder : recorders_)
    domain_.on_failure([recorder](const std::string& cause) { recorder->write(cause); });
}

void Watch::await(WaitPoint& point, std::unique_lock<std::mutex>& lock, PendingCall& call) {
  std::vector<int> ranks;
  const auto ready = [&] {
    if (call.complete()) return true;
    // A rank that has left can never arrive: the call fails at once, without waiting for the timeout.
    if (domain_.any_left()) ranks = call.missing(true);
    return !ranks.empty();
  };
  const auto notice = [&] {
    const std::vector<int> late = call.missing(false);
    const auto [world_rank, where, purpose, waiting] = call.describe();
    notice_lone_call(purpose, world_rank, where, late, waiting, point.timeout, last_calls(late));
  };
  // Releases the lock while it waits. A failure of any group of the launch ends the wait, too.
  const Wait outcome = domain_.wait(point, lock, ready, notice);
  if (outcome == Wait::ready && ranks.empty()) return;
  const PendingCall::Description d = call.describe();
  std::string cause;
  if (outcome == Wait::ready) {
    cause = left_message(d.where, ranks, last_calls(ranks) + waiting_clause(d.waiting));
  } else if (outcome == Wait::timed_out) {
    ranks = call.missing(false);
    cause = timeout_message(d.where, point.timeout, ranks, waiting_clause(d.waiting) + last_calls(ranks));
  }
  // Still under the lock: no rank finds this one as waiting after the failure is declared.
  call.withdraw();
  if (outcome != Wait::aborted) domain_.fail(lock, ranks.front(), d.where, cause);
  lock.unlock();
  domain_.raise(d.where);
}

void Watch::received(int world_rank, const std::string& group, const Call& call) {
  std::lock_guard lock(mutex_);
  Received& last = received_[world_rank];
  // Assigns only on a change: most calls come from one group, and this runs once per message.
  if (last.group != group) last.group = group;
  last.call = {.op = call.op,
               .sequence = call.sequence,
               .dtype = call.dtype,
               .elements = call.elements,
               .root = call.root,
               .purpose = call.purpose,
               .reduce = call.reduce};
  last.time = std::chrono::steady_clock::now();
}

void Watch::left(int world_rank, std::string last_call) {
  {
    std::lock_guard lock(mutex_);
    final_calls_[world_rank] = std::move(last_call);
  }
  // After the description is stored, since woken waiters read it; without mutex_, since leave() takes other
  // locks.
  domain_.leave(world_rank);
}

std::string Watch::last_call(int world_rank, const char* before) const {
  // Ranks of this process have a recorder, which is more recent than any message.
  for (const auto& recorder : recorders_)
    if (recorder->world_rank() == world_rank) return recorder->last(before);
  std::lock_guard lock(mutex_);
  if (const auto last = final_calls_.find(world_rank); last != final_calls_.end()) return last->second;
  const auto last = received_.find(world_rank);
  if (last == received_.end()) return "";
  const auto ago = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                                         last->second.time);
  return fmt::format("{} of '{}', received {} ms ago", comm::describe(last->second.call), last->second.group,
                     ago.count());
}

std::string Watch::last_calls(const std::vector<int>& world_ranks) const {
  return last_calls_clause(world_ranks, [this](int rank) { return last_call(rank); });
}

}  // namespace sherd::comm
