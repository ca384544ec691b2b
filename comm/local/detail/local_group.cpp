#include <sherd/comm/local/detail/local_group.h>

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include <sherd/kernels/copy/copy.h>

namespace sherd::local {

LocalGroup::LocalGroup(std::shared_ptr<LocalWorld> world, std::vector<int> world_ranks,
                       std::chrono::milliseconds timeout)
    : world_(std::move(world)),
      world_ranks_(std::move(world_ranks)),
      point_(domain().make_wait_point(timeout)),
      queued_(domain(),
              [this](int rank) {  // a rank that waits for one that has left checks again
                if (domain().has_left(rank)) point_->wake();
              }),
      calls_(world_->watch, *point_, world_ranks_, [this](int rank) { return gone(rank); }),
      sends_(world_ranks_.size()),
      arrival_times_(world_ranks_.size()),
      splits_(world_->watch, *point_, world_ranks_, [this](int rank) { return gone(rank); }),
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
    // On the worker: the event covers what this rank has issued so far, such as the operation that wrote its
    // input.
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
    // With a native queue the workers meet while issuing, so their arrival does not show when the data was
    // ready.
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
    // All events of point 2 exist now: this rank's queue waits until peers have finished reading its memory.
    calls_.sync(false);
    attempt([&] { wait_for_all(2); });
  }
  // The last sync(): a rank may reuse or free its buffers once all have finished reading.
  calls_.sync(true);
  if (failure) std::rethrow_exception(failure);
  // With a native queue the tensors stay allocated until the queue has passed this point.
  context.keep(std::make_shared<comm::Call>(call));
}

void LocalGroup::count_arrivals() {
  std::transform(calls_.came().begin(), calls_.came().end(), arrival_times_.begin(), [](const auto& time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  });
  world_->arrivals.add(world_ranks_, arrival_times_);
}

std::string LocalGroup::place(int rank, const comm::Call& call, const char* preposition, int peer) const {
  return fmt::format("{} on rank {} {} rank {}", describe(call), world_rank(rank), preposition,
                     world_rank(peer));
}

/// A send or a receive that waits for its peer.
class LocalGroup::Message final : public comm::PendingCall {
 public:
  Message(LocalGroup& group, Mailbox& box, int rank, int peer, bool sends, const comm::Call& call)
      : group_(group),
        box_(box),
        rank_(rank),
        peer_(peer),
        sends_(sends),
        call_(call),
        where_(group.place(rank, call, sends ? "to" : "from", peer)) {}

  const std::string& where() const { return where_; }
  // A receiver that has taken the message completes it. A box that is done still belongs to the message before.
  bool complete() override { return sends_ ? box_.taken : box_.posted && !box_.done; }
  // The peer is the only rank that this call waits for.
  std::vector<int> missing(bool gone) override {
    const int peer = group_.world_rank(peer_);
    if (complete() || (gone && !group_.gone(peer))) return {};
    return {peer};
  }
  Description describe() override {
    return {group_.world_rank(rank_), where_, call_.purpose, {{group_.world_rank(rank_), since_}}};
  }
  void withdraw() override {
    // The mailbox is the sender's; a receiver that withdraws leaves a posted message in it.
    if (sends_) box_ = {};
  }

 private:
  LocalGroup& group_;
  Mailbox& box_;
  const int rank_, peer_;
  const bool sends_;
  const comm::Call& call_;
  const std::string where_;
  const std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

void LocalGroup::send(int rank, int peer, const comm::Call& call, ExecutionContext& context) {
  Mailbox& box = mailbox(rank, peer);
  Message message(*this, box, rank, peer, /*sends=*/true, call);
  // Before the lock: the receiver's queue waits for this event, after which the data is written.
  std::shared_ptr<NativeEvent> ready = context.queue ? context.queue->record() : nullptr;
  std::unique_lock lock(point_->mutex);
  if (domain().aborted()) {
    lock.unlock();
    domain().raise(message.where());
  }
  box.posted = &call;
  box.ready = std::move(ready);
  point_->changed.notify_all();
  world_->watch.await(*point_, lock, message);
  // No timeout and no abort here: the receiver reads this rank's memory and reports its end in any case.
  point_->changed.wait(lock, [&] { return box.done; });
  const std::shared_ptr<NativeEvent> copied = box.copied;
  box = {};
  lock.unlock();
  if (copied) context.queue->wait(*copied);
  context.keep(std::make_shared<comm::Call>(call));
}

void LocalGroup::recv(int rank, int peer, const comm::Call& call, ExecutionContext& context, Device& device) {
  Mailbox& box = mailbox(peer, rank);
  Message message(*this, box, rank, peer, /*sends=*/false, call);
  std::unique_lock lock(point_->mutex);
  if (domain().aborted()) {
    lock.unlock();
    domain().raise(message.where());
  }
  world_->watch.await(*point_, lock, message);
  const comm::Call& sent = *box.posted;
  if (const std::string reason = comm::message_disagreement(message.where(), call, sent); !reason.empty())
    // The sender receives the same failure as an abort and withdraws its message.
    domain().fail(lock, -1, message.where(), reason);
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
  // Between enter() and sync(), while no later split can overwrite the results.
  auto result = std::move(split_results_[static_cast<size_t>(rank)]);
  splits_.sync(true);
  return result;
}

// Makes all new groups on the last rank to arrive, under the lock. Results are by rank of this group.
std::string LocalGroup::make_groups() {
  std::vector<comm::SplitWish> wishes;
  for (const SplitRequest* s : splits_.slots()) wishes.push_back({s->color, s->key});
  for (int r = 0; r < size(); ++r) {
    const std::vector<int> ranks = comm::split_group(wishes, wishes[static_cast<size_t>(r)].color);
    if (r != ranks.front()) continue;  // the first of them makes the group
    std::vector<int> world;
    for (const int member : ranks) world.push_back(world_rank(member));
    const auto asked = splits_.slots()[static_cast<size_t>(r)]->timeout;
    const auto timeout = asked.count() > 0 ? asked : point_->timeout;
    const auto group = std::make_shared<LocalGroup>(world_, std::move(world), timeout);
    for (size_t i = 0; i < ranks.size(); ++i)
      split_results_[static_cast<size_t>(ranks[i])] = {group, static_cast<int>(i)};
  }
  return "";
}

}  // namespace sherd::local
