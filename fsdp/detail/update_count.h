// Count of the weight updates that the device has completed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <sherd/comm/communicator.h>
#include <sherd/kernels/device/stream.h>

namespace sherd {

/// Counts on the stream that updates, not where the host queues them: what a failure has cut off is known by
/// it.
class UpdateCount {
 public:
  /// Behind what is queued on `stream`, an update begins, resp. ends, and with it all that were cut off
  /// before.
  void begin(Stream& stream);
  void end(Stream& stream);

  /// Once nothing is queued any more. Collective; queues on `stream` and blocks the host. `memory`: as of
  /// gather_values() for two values.
  /// @throws Error on every rank, beginning with `label`, unless all have ended the same updates, and none is
  /// in the middle of one. The ranks' counts are equal afterwards: a checkpoint makes their weights so.
  void require_equal(Communicator& comm, Stream& stream, const Tensor& memory, const std::string& label);

 private:
  struct Counts {
    std::atomic<int64_t> begun{0}, ended{0};
  };
  std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();  // shared with the work that counts
};

}  // namespace sherd
