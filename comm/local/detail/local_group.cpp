#include <sherd/comm/local/detail/local_group.h>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <tuple>

#include <sherd/kernels/copy/copy.h>

namespace sherd::local {

LocalGroup::LocalGroup(std::shared_ptr<comm::AbortDomain> domain, std::shared_ptr<Recovery> recovery,
                       std::shared_ptr<WorldLog> log, std::vector<int> world_ranks,
                       std::chrono::milliseconds timeout)
    : domain_(std::move(domain)),
      recovery_(std::move(recovery)),
      log_(std::move(log)),
      world_ranks_(std::move(world_ranks)),
      point_(domain_->make_wait_point(timeout)),
      presence_(*domain_, *point_, world_ranks_),
      calls_(
          *domain_, *point_, world_ranks_, [this](int rank) { return presence_.gone(rank); },
          [this](int world_rank) { return log_->last_call(world_rank); }),
      sends_(world_ranks_.size()),
      arrival_times_(world_ranks_.size()),
      splits_(
          *domain_, *point_, world_ranks_, [this](int rank) { return presence_.gone(rank); },
          [this](int world_rank) { return log_->last_call(world_rank); }),
      split_results_(world_ranks_.size()),
      mailboxes_(world_ranks_.size() * world_ranks_.size()) {
  for (auto& point : reached_) point.resize(world_ranks_.size());
}

// Runs on the thread of each rank's stream. Host threads meet in calls_; on devices with a native queue the
// data moves later, so events order the queues: point 0 before the first move (peers' inputs are ready),
// point 1 between the two moves, point 2 after the last (peers have finished reading).
void LocalGroup::collective(int rank, const comm::Call& call, const CollectiveAlgorithm& move,
                            ExecutionContext& context, Device& device) {
  NativeQueue* const queue = context.queue;
  // Each rank writes its own slot of reached_ alone; the meeting that follows makes it visible to the
  // others.
  const auto reach = [&](size_t point) {
    if (queue) reached_[point][static_cast<size_t>(rank)] = queue->record();
  };
  const auto wait_for_all = [&](size_t point) {
    if (!queue) return;
    for (size_t r = 0; r < reached_[point].size(); ++r)
      if (const auto& event = reached_[point][r]; event && r != static_cast<size_t>(rank))
        queue->wait(*event);
  };

  reach(0);
  // The last rank to arrive runs this function for all: every slot is filled, and no rank has moved data
  // yet.
  calls_.enter(rank, call, [this, queue] {
    std::string reason = comm::disagreement(calls_.slots(), world_ranks_);
    if (reason.empty() && !queue) count_arrivals();
    if (reason.empty())
      std::transform(calls_.slots().begin(), calls_.slots().end(), sends_.begin(),
                     [](const comm::Call* c) -> const void* { return c->send.raw(); });
    return reason;
  });
  // Peers wait for this rank from here on, so a failure of the device must not end it early.
  std::exception_ptr failure;
  const auto attempt = [&](auto&& work) {
    try {
      if (!failure) work();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  // Moves read the peers' memory through these addresses, which are valid until the last sync().
  const CollectiveContext inside{rank, calls_, sends_, context, device};
  attempt([&] {
    wait_for_all(0);
    move.first(inside);
  });
  if (move.second) {
    attempt([&] { reach(1); });
    // After this sync() the results of the first move may be read by peers.
    calls_.sync(false);
    attempt([&] {
      wait_for_all(1);
      move.second(inside);
    });
  }
  if (queue) {
    attempt([&] { reach(2); });
    calls_.sync(false);
    attempt([&] { wait_for_all(2); });
  }
  // The last sync(): a rank may reuse or free its buffers once all have finished reading.
  calls_.sync(true);
  if (failure) std::rethrow_exception(failure);
  context.keep(std::make_shared<comm::Call>(call));
}

void LocalGroup::count_arrivals() {
  std::transform(calls_.came().begin(), calls_.came().end(), arrival_times_.begin(), [](const auto& time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  });
  log_->arrivals.add(world_ranks_, arrival_times_);
}

std::string LocalGroup::place(int rank, const comm::Call& call, const char* preposition, int peer) const {
  return fmt::format("{} on rank {} {} rank {}", describe(call), world_rank(rank), preposition,
                     world_rank(peer));
}

void LocalGroup::fail_message(std::unique_lock<std::mutex>& lock, comm::Wait outcome, int rank, int peer,
                              const std::string& where, std::chrono::steady_clock::time_point since) {
  if (outcome == comm::Wait::aborted) {
    lock.unlock();
    domain_->raise(where);
  }
  const std::vector<int> missing{world_rank(peer)};
  const std::string last =
      comm::last_calls_clause(missing, [this](int world_rank) { return log_->last_call(world_rank); });
  const std::string waiting = comm::waiting_clause({{world_rank(rank), since}});
  domain_->fail(lock, world_rank(peer), where,
                outcome == comm::Wait::ready
                    ? domain_->left_message(where, missing, last + waiting)
                    : domain_->timeout_message(*point_, where, missing, waiting + last));
}

void LocalGroup::send(int rank, int peer, const comm::Call& call, ExecutionContext& context) {
  const std::string where = place(rank, call, "to", peer);
  Mailbox& box = mailbox(rank, peer);
  std::shared_ptr<NativeEvent> ready = context.queue ? context.queue->record() : nullptr;
  const auto since = std::chrono::steady_clock::now();
  std::unique_lock lock(point_->mutex);
  if (domain_->aborted()) {
    lock.unlock();
    domain_->raise(where);
  }
  box.posted = &call;
  box.ready = std::move(ready);
  point_->changed.notify_all();
  // A receiver that has taken the message is not gone.
  const comm::Wait outcome = domain_->wait(*point_, lock, [&] { return box.done || presence_.gone(peer); });
  if (box.taken) point_->changed.wait(lock, [&] { return box.done; });
  const bool arrived = box.done;
  const std::shared_ptr<NativeEvent> copied = box.copied;
  box = {};
  if (arrived) {
    lock.unlock();
    if (copied) context.queue->wait(*copied);
    context.keep(std::make_shared<comm::Call>(call));
    return;
  }
  fail_message(lock, outcome, rank, peer, where, since);
}

void LocalGroup::recv(int rank, int peer, const comm::Call& call, ExecutionContext& context, Device& device) {
  const std::string where = place(rank, call, "from", peer);
  Mailbox& box = mailbox(peer, rank);
  const auto since = std::chrono::steady_clock::now();
  std::unique_lock lock(point_->mutex);
  if (domain_->aborted()) {
    lock.unlock();
    domain_->raise(where);
  }
  // A box that is done still belongs to the sender of the message before.
  const auto posted = [&] { return box.posted != nullptr && !box.done; };
  const comm::Wait outcome = domain_->wait(*point_, lock, [&] { return posted() || presence_.gone(peer); });
  if (outcome != comm::Wait::ready || !posted()) fail_message(lock, outcome, rank, peer, where, since);
  const comm::Call& sent = *box.posted;
  if (const std::string reason = comm::message_disagreement(where, call, sent); !reason.empty())
    domain_->fail(lock, -1, where, reason);
  box.taken = true;
  lock.unlock();
  // The sender waits from here on, whatever happens.
  std::shared_ptr<NativeEvent> copied;
  std::exception_ptr failure;
  try {
    if (box.ready) context.queue->wait(*box.ready);
    if (call.elements > 0)
      device.kernels<CopyKernels>().copy(context, call.recv.raw(), sent.send.raw(), call.recv.nbytes());
    if (context.queue) copied = context.queue->record();
    context.keep(std::make_shared<comm::Call>(call));
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  box.copied = std::move(copied);
  box.done = true;
  point_->changed.notify_all();
  lock.unlock();
  if (failure) std::rethrow_exception(failure);
}

std::pair<std::shared_ptr<LocalGroup>, int> LocalGroup::split(int rank, const SplitRequest& request) {
  splits_.enter(rank, request, [this] { return make_groups(); });
  auto result = std::move(split_results_[static_cast<size_t>(rank)]);
  splits_.sync(true);
  return result;
}

std::string LocalGroup::make_groups() {
  std::map<int, std::vector<std::pair<int, int>>> members;  // color -> (key, rank)
  for (int r = 0; r < size(); ++r) {
    const SplitRequest& s = *splits_.slots()[static_cast<size_t>(r)];
    members[s.color].emplace_back(s.key, r);
  }
  for (auto& [color, ranks] : members) {
    std::sort(ranks.begin(), ranks.end());
    std::vector<int> world;
    for (auto [key, r] : ranks) world.push_back(world_rank(r));
    const auto asked = splits_.slots()[static_cast<size_t>(ranks.front().second)]->timeout;
    const auto timeout = asked.count() > 0 ? asked : point_->timeout;
    const auto group = std::make_shared<LocalGroup>(domain_, recovery_, log_, std::move(world), timeout);
    for (size_t i = 0; i < ranks.size(); ++i)
      split_results_[static_cast<size_t>(ranks[i].second)] = {group, static_cast<int>(i)};
  }
  return "";
}

}  // namespace sherd::local
