#include <sherd/comm/mpi/detail/member.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <sherd/kernels/random/random.h>

namespace sherd::mpi {
namespace {

using std::chrono::milliseconds;

// Time for the data of a call that all ranks have reached, after a failure. Peers that still run move their
// data, too.
constexpr std::chrono::seconds kAfterFailure{2};

// Time for the cause: a rank that withdraws has failed and announces the cause through the store.
constexpr std::chrono::seconds kCauseTime{10};

/// Returns the receiver's index of the call that a control message refers to.
CallNumber number_of(const ControlMessage& l) {
  switch (l.lane) {
    case Lane::send:
      return {Lane::receive, l.from, l.sequence};
    case Lane::receive:
      return {Lane::send, l.from, l.sequence};
    case Lane::collective:
    case Lane::split:
      break;
  }
  return {l.lane, -1, l.sequence};
}

}  // namespace

Member::Member(std::shared_ptr<Session> session, std::shared_ptr<Device> device,
               std::shared_ptr<comm::ArrivalBoard> arrivals, std::string name, std::vector<int> world_ranks,
               int rank, milliseconds timeout)
    : session_(std::move(session)),
      device_(std::move(device)),
      arrivals_seen_(std::move(arrivals)),
      name_(std::move(name)),
      id_(hash64(0, name_)),
      world_ranks_(std::move(world_ranks)),
      rank_(rank),
      point_(session_->domain().make_wait_point(timeout)) {
  if (session_->options().library_order && size() > 1) {
    std::vector<int> processes;
    // MPI's own reductions need an MPI communicator for the group.
    for (int r = 0; r < size(); ++r) processes.push_back(process_of(r));
    group_ = session_->engine().make_group(processes, id_, timeout, name_);
  }
  // Last: deliver() may be called on the engine's thread from here on.
  session_->enter(id_, rank_, *this);
}

Member::~Member() { session_->forget(id_, rank_); }

std::string Member::place(const std::string& what) const {
  return fmt::format("{} on rank {}", what, world_rank());
}

// Runs on the engine's thread, with the session's recipients mutex held, so it never waits for a peer.
void Member::deliver(ControlMessage message) {
  const CallNumber number = number_of(message);
  message.came = std::chrono::steady_clock::now();
  if (message.kind == ControlMessage::Kind::call) {
    if (message.lane == Lane::split) message.call = {.op = "split", .sequence = message.sequence};
    session_->watch().received(world_rank(message.from), name_, message.call);
  }
  std::lock_guard lock(point_->mutex);
  if (number.sequence <= over_[{number.lane, number.peer}]) return;  // of a call that this rank has abandoned
  Meeting::Arrivals& arrivals = arrivals_[number];
  if (message.kind == ControlMessage::Kind::withdraw)
    arrivals.withdrawn.push_back(message.from);
  else
    arrivals.messages[message.from] = std::move(message);
  // The meeting of this call waits for it.
  point_->changed.notify_all();
}

void Member::count_arrivals(const Meeting& meeting) {
  // Waiting times of the previous call: its ranks leave it together, so a longer wait is an earlier arrival.
  std::vector<int64_t> times(world_ranks_.size(), -waited_ns_);
  for (const auto& [rank, message] : meeting.messages_) times[static_cast<size_t>(rank)] = -message.waited_ns;
  arrivals_seen_->add(world_ranks_, times);
}

std::vector<int> Member::ranks_of(const Meeting& meeting, const std::vector<int>& processes) const {
  std::vector<int> ranks;
  for (const int p : meeting.peers_)
    if (std::ranges::find(processes, process_of(p)) != processes.end()) ranks.push_back(world_rank(p));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

void Member::raise_cause(std::unique_lock<std::mutex>& lock, const std::string& where, int withdrawn) {
  // The rank that withdrew reports the cause; wait for it before reporting the withdrawal alone.
  comm::AbortDomain& domain = session_->domain();
  point_->changed.wait_until(lock, std::chrono::steady_clock::now() + kCauseTime,
                             [&] { return domain.aborted(); });
  const int world = world_rank(withdrawn);
  if (!domain.aborted())
    domain.fail(lock, world, where,
                fmt::format("{}: rank {} aborted it without reporting a cause", where, world));
  lock.unlock();
  domain.raise(where);
}

std::unique_ptr<Member::Meeting> Member::meet(CallNumber number, std::vector<int> peers, ControlMessage mine,
                                              std::string where, const Purpose& purpose) {
  comm::AbortDomain& domain = session_->domain();
  if (domain.aborted()) domain.raise(where);
  auto meeting = std::make_unique<Meeting>(*this, number, std::move(peers), where, purpose);
  // Tags of data messages are drawn from the session, so that consecutive calls do not mix.
  meeting->tags_ = session_->take_tags(size());
  // Each rank sends its call to all others. When all have arrived, each rank can compare them on its own.
  meeting->write(std::move(mine));

  const Engine::Attention attention(session_->engine());
  std::unique_lock lock(point_->mutex);
  session_->watch().await(*point_, lock, *meeting);
  Meeting::Arrivals& arrivals = meeting->arrivals();
  if (!arrivals.withdrawn.empty()) {
    meeting->withdraw();
    raise_cause(lock, where, arrivals.withdrawn.front());
  }
  // Moved out of the map, which the engine's thread changes; the withdrawals stay there for finish().
  meeting->messages_ = std::move(arrivals.messages);
  arrivals.messages.clear();
  return meeting;
}

std::vector<int> Member::others() const {
  std::vector<int> ranks;
  // Ranks start with different peers, which spreads the messages.
  for (int step = 1; step < size(); ++step) ranks.push_back((rank_ + step) % size());
  return ranks;
}

std::unique_ptr<Member::Meeting> Member::meet(const comm::Call& call) {
  // Tensors stay local; the other ranks compare the description of the call only.
  comm::Call plain = call;
  plain.send = plain.recv = {};
  const std::string where = place(describe(call));
  auto meeting = meet({Lane::collective, -1, call.sequence}, others(),
                      {.call = std::move(plain), .waited_ns = waited_ns_}, where, call.purpose);
  const auto waited = std::chrono::steady_clock::now() - meeting->since_;
  // A missing entry is this rank's own call.
  std::vector<const comm::Call*> calls(static_cast<size_t>(size()), &call);
  for (const auto& [rank, message] : meeting->messages_) calls[static_cast<size_t>(rank)] = &message.call;
  // Every rank compares the same calls and finds the same reason.
  if (const std::string reason = comm::disagreement(calls, world_ranks_); !reason.empty())
    session_->domain().fail(-1, where, reason);
  // The first call has no previous one with waiting times.
  if (call.sequence > 1) count_arrivals(*meeting);
  // Sent with the next collective: the wait is known only after this one's messages are sent.
  waited_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(waited).count();
  return meeting;
}

std::unique_ptr<Member::Meeting> Member::meet_peer(const comm::Call& call, bool sends, int peer) {
  comm::Call plain = call;
  plain.send = plain.recv = {};
  const std::string where =
      fmt::format("{} {} rank {}", place(describe(call)), sends ? "to" : "from", world_rank(peer));
  auto meeting = meet({sends ? Lane::send : Lane::receive, peer, call.sequence}, {peer},
                      {.call = std::move(plain)}, where, call.purpose);
  if (const std::string reason = comm::message_disagreement(where, call, meeting->messages_.at(peer).call);
      !reason.empty())
    session_->domain().fail(-1, where, reason);
  return meeting;
}

std::shared_ptr<char> Member::scratch(int64_t bytes) {
  if (bytes <= scratch_bytes_) return scratch_;
  // The old block first, so that both do not exist at the same time.
  scratch_.reset();
  scratch_bytes_ = 0;
  // Fresh memory: a running operation takes it, while earlier operations may still use memory that the host
  // has released.
  void* const memory = device_->allocator().allocate(bytes, MemoryClass::message, "mpi slices", true);
  scratch_ = {static_cast<char*>(memory),
              [device = device_](char* p) { device->allocator().release(p, true); }};
  scratch_bytes_ = bytes;
  return scratch_;
}

std::shared_ptr<Member> Member::split(int color, int key, milliseconds timeout, const Purpose& purpose) {
  // Splits count apart from collectives: the host calls them, while streams run collectives.
  const int64_t sequence = ++splits_;
  const auto meeting = meet({Lane::split, -1, sequence}, others(), {.color = color, .key = key},
                            place(comm::split_text(color, key, purpose)), purpose);
  std::vector<comm::SplitWish> wishes(world_ranks_.size(), {color, key});
  for (const auto& [rank, message] : meeting->messages_)
    wishes[static_cast<size_t>(rank)] = {message.color, message.key};
  const std::vector<int> ranks = comm::split_group(wishes, color);
  std::vector<int> world_ranks;
  for (const int r : ranks) world_ranks.push_back(world_rank(r));
  const int new_rank = static_cast<int>(std::ranges::find(ranks, rank_) - ranks.begin());
  return std::make_shared<Member>(session_, device_, arrivals_seen_,
                                  fmt::format("{}/{}.{}", name_, sequence, color), std::move(world_ranks),
                                  new_rank, timeout.count() > 0 ? timeout : point_->timeout);
}

Member::Meeting::Meeting(Member& member, CallNumber number, std::vector<int> peers, std::string where,
                         const Purpose& purpose)
    : member_(member),
      number_(number),
      peers_(std::move(peers)),
      where_(std::move(where)),
      purpose_(purpose) {}

Member::Meeting::~Meeting() {
  for (const auto& batch : started_)
    // After an exception: the engine keeps the memory until MPI has ended the transfers.
    if (!batch->done()) member_.session_->engine().abandon(batch);
  std::lock_guard lock(member_.point_->mutex);
  member_.arrivals_.erase(number_);
  // Late messages of this call would otherwise create an entry in arrivals_ that no meeting removes.
  member_.over_[{number_.lane, number_.peer}] = number_.sequence;
}

bool Member::Meeting::complete() {
  return arrivals().messages.size() == peers_.size() || !arrivals().withdrawn.empty();
}

std::vector<int> Member::Meeting::missing(bool gone) {
  std::vector<int> ranks;
  for (const int p : peers_) {
    const int world = member_.world_rank(p);
    if (!arrivals().messages.contains(p) && (!gone || member_.session_->domain().has_left(world)))
      ranks.push_back(world);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

comm::PendingCall::Description Member::Meeting::describe() {
  Description d{member_.world_rank(), where_, purpose_, {{member_.world_rank(), since_}}};
  for (const auto& [rank, message] : arrivals().messages)
    d.waiting.push_back({member_.world_rank(rank), message.came});
  return d;
}

void Member::Meeting::withdraw() { write({.kind = ControlMessage::Kind::withdraw}); }

void Member::Meeting::write(ControlMessage message) {
  message.group = member_.id_;
  message.from = member_.rank_;
  message.lane = number_.lane;
  message.sequence = number_.sequence;
  for (const int p : peers_) {
    message.to = p;
    // The receiver chooses the tag of its data, unique among the open calls of its process.
    message.tag = tags_ + p;
    member_.session_->engine().write(member_.process_of(p), encode(message));
  }
}

std::shared_ptr<Batch> Member::Meeting::start(const std::vector<Piece>& sends,
                                              const std::vector<Piece>& recvs,
                                              std::shared_ptr<const void> keep) {
  std::vector<Transfer> transfers;
  for (const int p : peers_) {
    const auto at = static_cast<size_t>(p);
    const int process = member_.process_of(p);
    if (recvs[at].bytes > 0)
      // Receives first: MPI then places arriving data directly, without a copy of its own.
      transfers.push_back({false, recvs[at].data, recvs[at].bytes, process, tags_ + p});
    if (sends[at].bytes > 0)
      transfers.push_back({true, sends[at].data, sends[at].bytes, process, messages_.at(p).tag});
  }
  if (transfers.empty()) return nullptr;
  return started(member_.session_->engine().start(transfers, std::move(keep), on_done()));
}

std::shared_ptr<Batch> Member::Meeting::start(const Reduction& reduction, std::shared_ptr<const void> keep) {
  std::vector<int> processes;
  for (const int p : peers_) processes.push_back(member_.process_of(p));
  return started(member_.session_->engine().start(member_.group_, reduction, std::move(processes),
                                                  std::move(keep), on_done()));
}

std::shared_ptr<Batch> Member::Meeting::started(std::shared_ptr<Batch> batch) {
  return started_.emplace_back(std::move(batch));
}

std::function<void()> Member::Meeting::on_done() const {
  return [point = member_.point_] { point->wake(); };
}

void Member::Meeting::finish(const std::shared_ptr<Batch>& batch) {
  if (!batch) return;
  comm::AbortDomain& domain = member_.session_->domain();
  comm::WaitPoint& point = *member_.point_;
  std::unique_lock lock(point.mutex);
  const std::vector<int>& withdrawn = arrivals().withdrawn;
  // All have arrived. They move their data even when the launch fails meanwhile, so that no rank holds half
  // of it, unless a rank withdraws: one that received the failure before the call of the last to arrive.
  const auto over = [&] { return batch->done() || !withdrawn.empty(); };
  const auto deadline = std::chrono::steady_clock::now() + point.timeout;
  point.changed.wait_until(lock, deadline, [&] { return over() || domain.aborted(); });
  if (!over() && domain.aborted())
    point.changed.wait_until(lock, std::min(deadline, std::chrono::steady_clock::now() + kAfterFailure),
                             over);
  if (batch->done() && !batch->failed()) return;
  if (batch->done()) {  // the launch failed before this rank saw the end
    lock.unlock();
    domain.raise(where_);
  }
  withdraw();
  if (!withdrawn.empty()) member_.raise_cause(lock, where_, withdrawn.front());
  if (!domain.aborted()) {
    const std::vector<int> late = member_.ranks_of(*this, batch->late());
    domain.fail(
        lock, late.empty() ? -1 : late.front(), where_,
        fmt::format(
            "{}: all its ranks have called it, but its data did not move within {} ms between here and "
            "rank{} {}: a process has stopped, a host is cut off or the network does not carry it; raise the "
            "timeout if it is slow",
            where_, point.timeout.count(), late.size() > 1 ? "s" : "", fmt::join(late, ", ")));
  }
  lock.unlock();
  domain.raise(where_);
}

}  // namespace sherd::mpi
