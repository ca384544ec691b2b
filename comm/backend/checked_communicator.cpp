#include <sherd/comm/backend/checked_communicator.h>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <sherd/comm/core/detail/timeouts.h>

namespace sherd::comm {

WorkKind work_kind_of(Verb verb) {
  switch (verb) {
    case Verb::all_gather:
    case Verb::all_gather_v:
    case Verb::broadcast:
    case Verb::gather_v:
    case Verb::scatter_v:
      return WorkKind::gather;
    case Verb::reduce_scatter:
    case Verb::all_reduce:
      return WorkKind::reduce;
    case Verb::all_to_all_v:
    case Verb::send:
    case Verb::recv:
    case Verb::barrier:
      return WorkKind::exchange;
  }
  return WorkKind::exchange;
}

CheckedCommunicator::CheckedCommunicator(std::shared_ptr<GroupLabel> label, int rank,
                                         std::shared_ptr<Device> device,
                                         std::shared_ptr<CommCounters> counters)
    : label_(std::move(label)),
      rank_(rank),
      size_(static_cast<int>(label_->world_ranks.size())),
      world_rank_(label_->world_ranks[at(rank)]),
      device_(std::move(device)),
      counters_(std::move(counters)),
      sent_(at(size_)),
      received_(at(size_)) {
  recorder()->add(label_);
}

// Restarts the counts of calls after a recovery. Called on the host's thread before each call is numbered.
void CheckedCommunicator::renumber() {
  // After a recover() all ranks count from the start, whatever they had called before.
  if (const uint64_t now = domain().epoch(); std::exchange(epoch_, now) == now) return;
  sequence_ = splits_ = 0;
  label_->epoch = epoch_;
  label_->calls = label_->splits = 0;
  std::fill(sent_.begin(), sent_.end(), 0);
  std::fill(received_.begin(), received_.end(), 0);
}

void CheckedCommunicator::abort(const std::string& cause) noexcept {
  try {
    domain().abort(world_rank_, fmt::format("rank {} failed: {}", world_rank_, cause));
  } catch (const std::exception&) {
    domain().abort(world_rank_, cause);  // no memory for the longer text
  }
}

// Numbers, counts, records and queues one collective whose arguments are checked. `bytes` is the payload for
// CommCounters. Called by the rank's host thread alone.
void CheckedCommunicator::collective(Stream& stream, Verb verb, Call call, int64_t bytes) {
  renumber();
  // The sequence number is how peers match their calls: the n-th collective of a group is the same on all
  // ranks.
  call.sequence = ++sequence_;
  call.purpose = serves();
  // At the call, not at the end of the operation: counts and digest follow the host's order.
  counters_->add(call.op, bytes);
  // The elements of all_to_all_v differ between ranks, so only its verb and purpose enter the digest.
  if (call.purpose.in_digest())
    counters_->mix(call.op, verb == Verb::all_to_all_v ? 0 : call.elements, call.purpose.hash());
  // Watchdogs and roll calls read how far this rank has called.
  label_->calls = sequence_;
  record_and_queue(stream, verb, std::move(call), -1);
}

void CheckedCommunicator::record_and_queue(Stream& stream, Verb verb, Call call, int peer) {
  const int64_t flight = call.flight = recorder()->issue(label_, call, epoch_, peer);
  try {
    // The backend may refuse the call; the record must not stay open then.
    queue(stream, verb, std::move(call), peer);
  } catch (...) {
    recorder()->end(flight, FlightRecord::State::failed);
    throw;
  }
}

std::shared_ptr<Communicator> CheckedCommunicator::record_and_divide(int color, int key,
                                                                     std::chrono::milliseconds timeout,
                                                                     std::shared_ptr<CommCounters> counters) {
  renumber();
  label_->splits = ++splits_;
  // All ranks build the same name: the parent's name, the number of the split and the color.
  std::string name = fmt::format("{}/{}.{}", label_->name, splits_, color);
  if (epoch_ > 0) name += fmt::format("@{}", epoch_);  // names must stay unique after a recover()
  const int64_t flight =
      recorder()->issue(label_, {.op = "split", .sequence = splits_, .purpose = serves()}, epoch_, -1);
  // The host's thread runs the split and blocks; streams continue with earlier calls.
  return recorder()->run(flight,
                         [&] { return divide(color, key, timeout, std::move(counters), std::move(name)); });
}

// Returns the offset of this rank's part among parts of these sizes, in elements.
int64_t CheckedCommunicator::before(std::span<const int64_t> counts) const {
  return std::accumulate(counts.begin(), counts.begin() + rank_, int64_t{0});
}

void CheckedCommunicator::all_gather(Stream& stream, const Tensor& recv, const Tensor& send) {
  const auto check = checking("all_gather");
  check.pair(recv, send);
  check.numel(recv, "recv", size_ * send.numel(), "the group's size times send's");
  check.place_of(*device_, stream, {{recv, "recv"}, {send, "send"}});
  // In place only at this rank's own slice of recv.
  check.in_place(send, "send", recv, "recv", rank_ * send.numel());
  collective(stream, Verb::all_gather,
             {.op = "all_gather",
              .dtype = send.dtype(),
              .elements = recv.numel(),
              .counts = std::vector<int64_t>(static_cast<size_t>(size_), send.numel()),
              .send = send,
              .recv = recv},
             recv.nbytes() - send.nbytes());
}

void CheckedCommunicator::all_gather_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts,
                                       const Tensor& send) {
  const auto check = checking("all_gather_v");
  check.pair(recv, send);
  const int64_t total = check.counts(counts, "counts");
  check.numel(send, "send", counts[at(rank_)], "counts[rank]");
  check.numel(recv, "recv", total, "the sum of counts");
  check.place_of(*device_, stream, {{recv, "recv"}, {send, "send"}});
  check.in_place(send, "send", recv, "recv", before(counts));
  collective(stream, Verb::all_gather_v,
             {.op = "all_gather_v",
              .dtype = send.dtype(),
              .elements = total,
              .counts = {counts.begin(), counts.end()},
              .send = send,
              .recv = recv},
             recv.nbytes() - send.nbytes());
}

void CheckedCommunicator::reduce_scatter(Stream& stream, const Tensor& recv, const Tensor& send,
                                         ReduceOp op) {
  const auto check = checking("reduce_scatter");
  check.pair(recv, send);
  check.reducible(send);
  check.numel(send, "send", size_ * recv.numel(), "the group's size times recv's");
  check.place_of(*device_, stream, {{recv, "recv"}, {send, "send"}});
  check.in_place(recv, "recv", send, "send", rank_ * recv.numel());
  collective(stream, Verb::reduce_scatter,
             {.op = "reduce_scatter",
              .dtype = send.dtype(),
              .elements = send.numel(),
              .reduce = op,
              .send = send,
              .recv = recv},
             send.nbytes() - recv.nbytes());
}

void CheckedCommunicator::all_reduce(Stream& stream, const Tensor& inout, ReduceOp op) {
  const auto check = checking("all_reduce");
  check.defined(inout, "inout");
  check.reducible(inout);
  check.place_of(*device_, stream, {{inout, "inout"}});
  // Payload of a ring: 2 * (n-1)/n of the elements, rounded up.
  const int64_t moved = (2 * (size_ - 1) * inout.numel() + size_ - 1) / size_;
  collective(stream, Verb::all_reduce,
             {.op = "all_reduce",
              .dtype = inout.dtype(),
              .elements = inout.numel(),
              .reduce = op,
              .send = inout,
              .recv = inout},
             moved * size_of(inout.dtype()));
}

void CheckedCommunicator::broadcast(Stream& stream, const Tensor& inout, int root) {
  const auto check = checking("broadcast");
  check.defined(inout, "inout");
  check.root(root);
  check.place_of(*device_, stream, {{inout, "inout"}});
  collective(stream, Verb::broadcast,
             {.op = "broadcast",
              .dtype = inout.dtype(),
              .elements = inout.numel(),
              .root = root,
              .send = inout,
              .recv = inout},
             rank_ == root ? 0 : inout.nbytes());
}

void CheckedCommunicator::all_to_all_v(Stream& stream, const Tensor& recv,
                                       std::span<const int64_t> recv_counts, const Tensor& send,
                                       std::span<const int64_t> send_counts) {
  const auto check = checking("all_to_all_v");
  check.pair(recv, send);
  check.numel(recv, "recv", check.counts(recv_counts, "recv_counts"), "the sum of recv_counts");
  check.numel(send, "send", check.counts(send_counts, "send_counts"), "the sum of send_counts");
  check.place_of(*device_, stream, {{recv, "recv"}, {send, "send"}});
  // Sizes differ between ranks, so no slice is safe in place.
  check.apart(recv, "recv", send, "send");
  collective(stream, Verb::all_to_all_v,
             {.op = "all_to_all_v",
              .dtype = send.dtype(),
              .elements = recv.numel(),
              .send_counts = {send_counts.begin(), send_counts.end()},
              .recv_counts = {recv_counts.begin(), recv_counts.end()},
              .send = send,
              .recv = recv},
             (recv.numel() - recv_counts[at(rank_)]) * size_of(recv.dtype()));
}

void CheckedCommunicator::gather_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts,
                                   const Tensor& send, int root) {
  const auto check = checking("gather_v");
  check.root(root);
  const int64_t total = check.counts(counts, "counts");
  check.defined(send, "send");
  check.numel(send, "send", counts[at(rank_)], "counts[rank]");
  check.place_of(*device_, stream, {{send, "send"}});
  // The other ranks may pass an undefined recv.
  if (rank_ == root) {
    check.pair(recv, send);
    check.numel(recv, "recv", total, "the sum of counts");
    check.place_of(*device_, stream, {{recv, "recv"}});
    check.in_place(send, "send", recv, "recv", before(counts));
  }
  // Counted bytes: the root receives all parts but its own, the other ranks receive nothing.
  collective(stream, Verb::gather_v,
             {.op = "gather_v",
              .dtype = send.dtype(),
              .elements = total,
              .counts = {counts.begin(), counts.end()},
              .root = root,
              .send = send,
              .recv = rank_ == root ? recv : Tensor()},
             rank_ == root ? recv.nbytes() - send.nbytes() : 0);
}

void CheckedCommunicator::scatter_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts,
                                    const Tensor& send, int root) {
  const auto check = checking("scatter_v");
  check.root(root);
  const int64_t total = check.counts(counts, "counts");
  check.defined(recv, "recv");
  check.numel(recv, "recv", counts[at(rank_)], "counts[rank]");
  check.place_of(*device_, stream, {{recv, "recv"}});
  // The other ranks may pass an undefined send.
  if (rank_ == root) {
    check.pair(recv, send);
    check.numel(send, "send", total, "the sum of counts");
    check.place_of(*device_, stream, {{send, "send"}});
    check.in_place(recv, "recv", send, "send", before(counts));
  }
  collective(stream, Verb::scatter_v,
             {.op = "scatter_v",
              .dtype = recv.dtype(),
              .elements = total,
              .counts = {counts.begin(), counts.end()},
              .root = root,
              .send = rank_ == root ? send : Tensor(),
              .recv = recv},
             rank_ == root ? 0 : recv.nbytes());
}

// Messages have sequence numbers of their own for each peer and direction, apart from those of collectives:
// only the two ranks take part.
void CheckedCommunicator::send(Stream& stream, const Tensor& data, int peer) {
  const auto check = checking("send");
  check.defined(data, "data");
  check.peer(peer);
  check.place_of(*device_, stream, {{data, "data"}});
  renumber();
  counters_->add("send", 0);
  record_and_queue(stream, Verb::send,
                   {.op = "send",
                    .sequence = ++sent_[at(peer)],
                    .dtype = data.dtype(),
                    .elements = data.numel(),
                    .purpose = serves(),
                    .send = data},
                   peer);
}

void CheckedCommunicator::recv(Stream& stream, const Tensor& data, int peer) {
  const auto check = checking("recv");
  check.defined(data, "data");
  check.peer(peer);
  check.place_of(*device_, stream, {{data, "data"}});
  renumber();
  counters_->add("recv", data.nbytes());
  record_and_queue(stream, Verb::recv,
                   {.op = "recv",
                    .sequence = ++received_[at(peer)],
                    .dtype = data.dtype(),
                    .elements = data.numel(),
                    .purpose = serves(),
                    .recv = data},
                   peer);
}

void CheckedCommunicator::barrier(Stream& stream) {
  checking("barrier").place_of(*device_, stream, {});
  // A barrier of the ranks' streams. The host's thread does not wait.
  collective(stream, Verb::barrier, {.op = "barrier"}, 0);
}

std::shared_ptr<Communicator> CheckedCommunicator::split(int color, int key) {
  if (color < 0)
    throw InvalidArgument(
        fmt::format("split on rank {}: color {} is negative; every rank joins a group, use 0 or more",
                    world_rank_, color));
  return record_and_divide(color, key, std::chrono::milliseconds(0), counters_);
}

std::shared_ptr<Communicator> CheckedCommunicator::side_channel(std::chrono::milliseconds timeout) {
  // A side channel has counters of its own, so that its traffic does not appear in the group's statistics.
  return record_and_divide(0, rank_, bounded(timeout), std::make_shared<CommCounters>(recorder()));
}

// The default without windows: ordinary device memory. A backend overrides it for registered memory.
std::unique_ptr<BufferSet> CheckedCommunicator::make_buffers(std::span<const BufferSpec> specs) {
  std::vector<Tensor> tensors;
  for (const BufferSpec& s : specs)
    tensors.push_back(Tensor::empty(*device_, {s.elements}, s.dtype, s.kind, s.name));
  return std::make_unique<BufferSet>(std::move(tensors));
}

}  // namespace sherd::comm
