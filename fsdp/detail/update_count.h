// Count of the weight updates that the device has completed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <sherd/comm/core/communicator.h>
#include <sherd/kernels/device/stream.h>

namespace sherd {

/// Counts updates on the stream that runs them, not when the host queues them. It shows which update a
/// failure cut off.
class UpdateCount {
 public:
  /// Count, in stream order, that an update begins, resp. ends. An end also ends all updates that were cut
  /// off before.
  void begin(Stream& stream);
  void end(Stream& stream);

  /// Checks the counts once nothing is queued any more. Collective; queues on `stream` and blocks the host.
  /// `memory`: as for gather_values() with two values.
  /// @throws Error on every rank, beginning with `label`, unless all have ended the same updates and none is
  /// in progress. The ranks' counts are equal afterwards; loading a checkpoint makes their weights equal.
  void require_equal(Communicator& comm, Stream& stream, const Tensor& memory, const std::string& label);

 private:
  struct Counts {
    std::atomic<int64_t> begun{0}, ended{0};
  };
  std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();  // shared with the operations that count
};

}  // namespace sherd
