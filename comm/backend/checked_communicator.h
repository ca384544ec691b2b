// Common part of every backend's communicator: checks at the call, counters, sequence numbers. Private to
// comm/.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include <sherd/comm/backend/argument_check.h>
#include <sherd/comm/backend/counters.h>
#include <sherd/comm/core/detail/call.h>

namespace sherd::comm {

enum class Verb {
  all_gather,
  all_gather_v,
  reduce_scatter,
  all_reduce,
  broadcast,
  all_to_all_v,
  gather_v,
  scatter_v,
  send,
  recv,
  barrier
};
WorkKind work_kind_of(Verb verb);

/// Base of a backend's communicator: the backend queues calls whose arguments were checked on this rank.
class CheckedCommunicator : public Communicator {
 public:
  /// `label`: name and world ranks of its group; `rank`: this rank's index in the group.
  CheckedCommunicator(std::shared_ptr<GroupLabel> label, int rank, std::shared_ptr<Device> device,
                      std::shared_ptr<CommCounters> counters);

  /// The name of the world's communicator among labels.
  static constexpr const char* kWorld = "world";

  int rank() const final { return rank_; }
  int size() const final { return size_; }
  int world_rank() const final { return world_rank_; }
  Device& device() const final { return *device_; }

  void all_gather(Stream& stream, const Tensor& recv, const Tensor& send) final;
  void all_gather_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts,
                    const Tensor& send) final;
  void reduce_scatter(Stream& stream, const Tensor& recv, const Tensor& send, ReduceOp op) final;
  void all_reduce(Stream& stream, const Tensor& inout, ReduceOp op) final;
  void broadcast(Stream& stream, const Tensor& inout, int root) final;
  void all_to_all_v(Stream& stream, const Tensor& recv, std::span<const int64_t> recv_counts,
                    const Tensor& send, std::span<const int64_t> send_counts) final;
  void gather_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts, const Tensor& send,
                int root) final;
  void scatter_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts, const Tensor& send,
                 int root) final;
  void send(Stream& stream, const Tensor& data, int peer) final;
  void recv(Stream& stream, const Tensor& data, int peer) final;
  void barrier(Stream& stream) final;
  std::shared_ptr<Communicator> split(int color, int key) final;
  std::shared_ptr<Communicator> side_channel(std::chrono::milliseconds timeout) final;
  std::unique_ptr<BufferSet> make_buffers(std::span<const BufferSpec> specs) override;
  CommCounts counts() const final { return counters_->snapshot(); }
  uint64_t digest() const final { return counters_->digest(); }
  void reset_digest() final { counters_->reset_digest(); }
  void abort(const std::string& cause) noexcept final;

 protected:
  /// Queues a call. `peer`: for send and recv. The operation runs inside recorder()->run(call.flight, ...).
  virtual void queue(Stream& stream, Verb verb, Call call, int peer) = 0;
  /// Makes this rank's communicator of a split. `timeout` of 0: as this one's; else it is a side channel. `name`: of the new
  /// label.
  virtual std::shared_ptr<Communicator> divide(int color, int key, std::chrono::milliseconds timeout,
                                               std::shared_ptr<CommCounters> counters, std::string name) = 0;

  /// Returns the failure state of the launch.
  virtual AbortDomain& domain() = 0;

  const std::shared_ptr<Device>& shared_device() const { return device_; }
  const std::shared_ptr<FlightRecorder>& recorder() const { return counters_->recorder(); }

 private:
  static size_t at(int rank) { return static_cast<size_t>(rank); }
  ArgumentCheck checking(const char* op) const { return {op, rank_, size_, world_rank_}; }
  /// Returns the number of elements of the ranks before this one.
  int64_t before(std::span<const int64_t> counts) const;
  void renumber();
  void collective(Stream& stream, Verb verb, Call call, int64_t bytes);
  /// Records the call, then queues it.
  void record_and_queue(Stream& stream, Verb verb, Call call, int peer);
  std::shared_ptr<Communicator> record_and_divide(int color, int key, std::chrono::milliseconds timeout,
                                                  std::shared_ptr<CommCounters> counters);

  const std::shared_ptr<GroupLabel> label_;
  const int rank_, size_, world_rank_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<CommCounters> counters_;
  uint64_t epoch_ = 0;  // of the numbers below
  int64_t sequence_ = 0, splits_ = 0;
  std::vector<int64_t> sent_, received_;  // messages to and from each rank
};

}  // namespace sherd::comm
