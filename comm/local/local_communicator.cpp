#include <sherd/comm/local/local_communicator.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include <sherd/comm/argument_check.h>
#include <sherd/comm/counters.h>
#include <sherd/comm/local/local_group.h>

namespace sherd {
namespace {

using local::Call;
using local::LocalGroup;

// Far enough to mean "never", near enough not to overflow the clock.
std::chrono::milliseconds bounded(std::chrono::milliseconds timeout) {
  return std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
}

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank, std::shared_ptr<Device> device,
                    std::shared_ptr<CommCounters> counters)
      : group_(std::move(group)),
        rank_(rank),
        device_(std::move(device)),
        counters_(std::move(counters)),
        sent_(static_cast<size_t>(group_->size())),
        received_(static_cast<size_t>(group_->size())) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  int world_rank() const override { return group_->world_rank(rank_); }
  Device& device() const override { return *device_; }

  void all_gather(Stream& stream, const Tensor& recv, const Tensor& send) override {
    const auto check = checking("all_gather");
    check.pair(recv, send);
    check.numel(recv, "recv", size() * send.numel(), "the group's size times send's");
    collective(stream,
               {.op = "all_gather",
                .dtype = send.dtype(),
                .elements = recv.numel(),
                .counts = std::vector<int64_t>(static_cast<size_t>(size()), send.numel()),
                .send = send,
                .recv = recv},
               recv.nbytes() - send.nbytes(), local::move_all_gather_v);
  }

  void all_gather_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts,
                    const Tensor& send) override {
    const auto check = checking("all_gather_v");
    check.pair(recv, send);
    const int64_t total = check.counts(counts, "counts");
    check.numel(send, "send", counts[at(rank_)], "counts[rank]");
    check.numel(recv, "recv", total, "the sum of counts");
    collective(stream,
               {.op = "all_gather_v",
                .dtype = send.dtype(),
                .elements = total,
                .counts = {counts.begin(), counts.end()},
                .send = send,
                .recv = recv},
               recv.nbytes() - send.nbytes(), local::move_all_gather_v);
  }

  void reduce_scatter(Stream& stream, const Tensor& recv, const Tensor& send, ReduceOp op) override {
    const auto check = checking("reduce_scatter");
    check.pair(recv, send);
    check.reducible(send);
    check.numel(send, "send", size() * recv.numel(), "the group's size times recv's");
    collective(stream,
               {.op = "reduce_scatter",
                .dtype = send.dtype(),
                .elements = send.numel(),
                .reduce = op,
                .send = send,
                .recv = recv},
               send.nbytes() - recv.nbytes(), local::move_reduce_scatter);
  }

  void all_reduce(Stream& stream, const Tensor& inout, ReduceOp op) override {
    const auto check = checking("all_reduce");
    check.defined(inout, "inout");
    check.reducible(inout);
    const int64_t moved = (2 * (size() - 1) * inout.numel() + size() - 1) / size();
    collective(stream,
               {.op = "all_reduce",
                .dtype = inout.dtype(),
                .elements = inout.numel(),
                .reduce = op,
                .send = inout,
                .recv = inout},
               moved * size_of(inout.dtype()), local::move_all_reduce);
  }

  void broadcast(Stream& stream, const Tensor& inout, int root) override {
    const auto check = checking("broadcast");
    check.defined(inout, "inout");
    check.root(root);
    collective(stream,
               {.op = "broadcast",
                .dtype = inout.dtype(),
                .elements = inout.numel(),
                .root = root,
                .send = inout,
                .recv = inout},
               rank_ == root ? 0 : inout.nbytes(), local::move_broadcast);
  }

  void all_to_all_v(Stream& stream, const Tensor& recv, std::span<const int64_t> recv_counts,
                    const Tensor& send, std::span<const int64_t> send_counts) override {
    const auto check = checking("all_to_all_v");
    check.pair(recv, send);
    check.numel(recv, "recv", check.counts(recv_counts, "recv_counts"), "the sum of recv_counts");
    check.numel(send, "send", check.counts(send_counts, "send_counts"), "the sum of send_counts");
    collective(stream,
               {.op = "all_to_all_v",
                .dtype = send.dtype(),
                .elements = recv.numel(),
                .send_counts = {send_counts.begin(), send_counts.end()},
                .recv_counts = {recv_counts.begin(), recv_counts.end()},
                .send = send,
                .recv = recv},
               (recv.numel() - recv_counts[at(rank_)]) * size_of(recv.dtype()), local::move_all_to_all_v);
  }

  void gather_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts, const Tensor& send,
                int root) override {
    const auto check = checking("gather_v");
    check.root(root);
    const int64_t total = check.counts(counts, "counts");
    check.defined(send, "send");
    check.numel(send, "send", counts[at(rank_)], "counts[rank]");
    if (rank_ == root) {
      check.pair(recv, send);
      check.numel(recv, "recv", total, "the sum of counts");
    }
    collective(stream,
               {.op = "gather_v",
                .dtype = send.dtype(),
                .elements = total,
                .counts = {counts.begin(), counts.end()},
                .root = root,
                .send = send,
                .recv = rank_ == root ? recv : Tensor()},
               rank_ == root ? recv.nbytes() - send.nbytes() : 0, local::move_all_gather_v);
  }

  void scatter_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts, const Tensor& send,
                 int root) override {
    const auto check = checking("scatter_v");
    check.root(root);
    const int64_t total = check.counts(counts, "counts");
    check.defined(recv, "recv");
    check.numel(recv, "recv", counts[at(rank_)], "counts[rank]");
    if (rank_ == root) {
      check.pair(recv, send);
      check.numel(send, "send", total, "the sum of counts");
    }
    collective(stream,
               {.op = "scatter_v",
                .dtype = recv.dtype(),
                .elements = total,
                .counts = {counts.begin(), counts.end()},
                .root = root,
                .send = rank_ == root ? send : Tensor(),
                .recv = recv},
               rank_ == root ? 0 : recv.nbytes(), local::move_scatter_v);
  }

  void send(Stream& stream, const Tensor& data, int peer) override {
    const auto check = checking("send");
    check.defined(data, "data");
    check.peer(peer);
    counters_->add("send", 0);
    Call call{.op = "send",
              .sequence = ++sent_[at(peer)],
              .dtype = data.dtype(),
              .elements = data.numel(),
              .send = data};
    stream.submit("send", [group = group_, rank = rank_, peer, call = std::move(call)](ExecutionContext& c) {
      group->send(rank, peer, call, c);
    });
  }

  void recv(Stream& stream, const Tensor& data, int peer) override {
    const auto check = checking("recv");
    check.defined(data, "data");
    check.peer(peer);
    counters_->add("recv", data.nbytes());
    Call call{.op = "recv",
              .sequence = ++received_[at(peer)],
              .dtype = data.dtype(),
              .elements = data.numel(),
              .recv = data};
    stream.submit("recv",
                  [group = group_, rank = rank_, peer, call = std::move(call), &kernels = device_->kernels()](
                      ExecutionContext& c) { group->recv(rank, peer, call, c, kernels); });
  }

  void barrier(Stream& stream) override { collective(stream, {.op = "barrier"}, 0, local::move_nothing); }

  std::shared_ptr<Communicator> split(int color, int key) override {
    if (color < 0)
      throw InvalidArgument(
          fmt::format("split on rank {}: color {} is negative; every rank joins a group, use 0 or more",
                      world_rank(), color));
    auto [group, rank] = group_->split(rank_, {color, key});
    return std::make_shared<LocalCommunicator>(std::move(group), rank, device_, counters_);
  }

  std::shared_ptr<Communicator> side_channel(std::chrono::milliseconds timeout) override {
    auto [group, rank] = group_->split(rank_, {0, rank_, bounded(timeout)});
    return std::make_shared<LocalCommunicator>(std::move(group), rank, device_,
                                               std::make_shared<CommCounters>());
  }

  void abort(const std::string& cause) noexcept override {
    try {
      group_->domain().abort(world_rank(), fmt::format("rank {} failed: {}", world_rank(), cause));
    } catch (const std::exception&) {
      group_->domain().abort(world_rank(), cause);  // no memory for the longer text
    }
  }

  CommCounts counts() const override { return counters_->snapshot(); }

 private:
  static size_t at(int rank) { return static_cast<size_t>(rank); }
  ArgumentCheck checking(const char* op) const { return {op, rank_, size(), world_rank()}; }

  void collective(Stream& stream, Call call, int64_t bytes, const local::Move& move) {
    call.sequence = ++sequence_;
    counters_->add(call.op, bytes);
    const char* op = call.op;
    stream.submit(op,
                  [group = group_, rank = rank_, call = std::move(call), move, &kernels = device_->kernels()](
                      ExecutionContext& c) { group->collective(rank, call, move, c, kernels); });
  }

  const std::shared_ptr<LocalGroup> group_;
  const int rank_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<CommCounters> counters_;
  int64_t sequence_ = 0;
  std::vector<int64_t> sent_, received_;  // messages to and from each rank
};

}  // namespace

std::vector<std::shared_ptr<Communicator>> make_local_world(std::span<const std::shared_ptr<Device>> devices,
                                                            std::chrono::milliseconds timeout) {
  if (devices.empty()) throw InvalidArgument("a world of no devices; use at least 1");
  if (timeout.count() <= 0)
    throw InvalidArgument(fmt::format("a collective timeout of {} ms; use at least 1", timeout.count()));
  for (const auto& a : devices)
    for (const auto& b : devices)
      if (!a->reaches(*b))
        throw NotSupported(
            fmt::format("{} cannot read the memory of {}, as the local backend needs; use NCCL for "
                        "GPUs without peer access, and one kind of device",
                        a->label(), b->label()));
  std::vector<int> ranks(devices.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group =
      std::make_shared<LocalGroup>(std::make_shared<local::AbortDomain>(), ranks, bounded(timeout));
  std::vector<std::shared_ptr<Communicator>> world;
  for (int r : ranks)
    world.push_back(std::make_shared<LocalCommunicator>(group, r, devices[static_cast<size_t>(r)],
                                                        std::make_shared<CommCounters>()));
  return world;
}

}  // namespace sherd
