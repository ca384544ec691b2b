#include <sherd/comm/dry/dry_world.h>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <sherd/comm/backend/checked_communicator.h>

namespace sherd {
namespace {

using comm::Call;
using comm::Verb;

/// Shared state of the communicators of a rank.
struct DryWorld {
  std::shared_ptr<DryDevice> device;
  comm::AbortDomain domain;
  CommCounts recorded;  // bytes of calls that are in the device's record
  int64_t communicator_bytes = 0;
};

class DryCommunicator final : public comm::CheckedCommunicator {
 public:
  DryCommunicator(std::shared_ptr<DryWorld> world, std::string name, std::vector<int> ranks, int rank,
                  std::shared_ptr<comm::CommCounters> counters)
      : comm::CheckedCommunicator(std::make_shared<comm::GroupLabel>(std::move(name), ranks), rank,
                                  world->device, std::move(counters)),
        world_(std::move(world)),
        ranks_(std::make_shared<const std::vector<int>>(std::move(ranks))) {
    if (ranks_->size() > 1 && world_->communicator_bytes > 0)
      library_ = Tensor::empty(*world_->device, {world_->communicator_bytes}, DType::u8, MemoryClass::message,
                               "NCCL");
  }

  std::shared_ptr<Communicator> subgroup(std::span<const int> ranks) override {
    group_.clear();
    for (const int r : ranks) group_.push_back(ranks_->at(static_cast<size_t>(r)));
    return split(0, static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin()));
  }
  void leave() noexcept override {}
  std::vector<std::string> recover(std::chrono::milliseconds) override { return {}; }

 private:
  // Records the call with its payload. counts() holds sums over all communicators with these counters, so the
  // difference to the last call is this call's.
  void queue(Stream& stream, Verb verb, Call call, int) override {
    CommCount& recorded = world_->recorded[call.op];
    const CommCount now = counts()[call.op];
    world_->device->exchange(stream, comm::work_kind_of(verb),
                             {call.op, std::string(call.purpose.text()),
                              now.bytes - std::exchange(recorded.bytes, now.bytes), ranks_});
  }

  comm::AbortDomain& domain() override { return world_->domain; }

  std::shared_ptr<Communicator> divide(int color, int key, std::chrono::milliseconds,
                                       std::shared_ptr<comm::CommCounters> counters,
                                       std::string name) override {
    std::vector<int> ranks = std::exchange(group_, {});
    // A clone: the arguments of Communicator::clone().
    if (ranks.empty() && color == 0 && key == rank()) ranks = *ranks_;
    if (ranks.empty())
      throw NotSupported(fmt::format(
          "split({}, {}) in a dry run: the ranks of the group are unknown; call subgroup() or clone()", color,
          key));
    return std::make_shared<DryCommunicator>(world_, std::move(name), std::move(ranks), key,
                                             std::move(counters));
  }

  const std::shared_ptr<DryWorld> world_;
  const std::shared_ptr<const std::vector<int>> ranks_;  // as world ranks
  std::vector<int> group_;                               // of the split that subgroup() asks for
  Tensor library_;                                       // the communication library's memory
};

}  // namespace

std::shared_ptr<Communicator> make_dry_world(std::shared_ptr<DryDevice> device, int rank, int size,
                                             int64_t communicator_bytes) {
  if (size < 1 || rank < 0 || rank >= size)
    throw InvalidArgument(
        fmt::format("rank {} of a dry world of {} ranks; use 0 to {}", rank, size, std::max(size, 1) - 1));
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto recorder =
      std::make_shared<comm::FlightRecorder>(FlightRecorderOptions{.operations = 0}, rank, size);
  auto world = std::make_shared<DryWorld>();
  world->device = std::move(device);
  world->communicator_bytes = communicator_bytes;
  return std::make_shared<DryCommunicator>(std::move(world), comm::CheckedCommunicator::kWorld,
                                           std::move(ranks), rank,
                                           std::make_shared<comm::CommCounters>(recorder));
}

}  // namespace sherd
