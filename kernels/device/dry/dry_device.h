// Device of dry runs: allocates address space, records operations, computes nothing.
//
// A program runs on it as on any device, without ranks, data or memory, so that what the allocator and the
// record say is what the program does. Memory is never written by operations; copy_to_host leaves its target
// unchanged.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <sherd/kernels/device/device.h>

namespace sherd {

/// A collective in the record, as the rank calls it.
struct DryExchange {
  std::string op;                                 // as in CommCounts
  std::string purpose;                            // "the weights of unit 'blocks.1'"; "" without
  int64_t bytes = 0;                              // as counted: received from other ranks
  std::shared_ptr<const std::vector<int>> ranks;  // of the group, as world ranks
};

/// One call of a stream, in the order of the host's calls.
struct DryEntry {
  enum class Kind : uint8_t { operation, exchange, record, wait, synchronize };
  Kind kind = Kind::operation;
  int stream = 0;  // index in DryRecord::streams
  Operation what = {};
  Work work = {};
  /// Number of the event that is recorded or waited for (0: one of before the record was cleared); index in
  /// exchanges.
  int64_t number = 0;
};

struct DryRecord {
  std::vector<std::string> streams;  // by name, all that were made
  std::vector<DryEntry> entries;
  std::vector<DryExchange> exchanges;
  /// Bytes that the allocator took from its source, and returned to it, since clear().
  int64_t taken = 0, returned = 0;
};

struct DryDeviceOptions {
  /// Threads (0: one) and kernels are those of the device whose scratch memory is predicted.
  DeviceOptions device = {};
  /// Value of Device::total_memory().
  int64_t total_memory = 0;
  int64_t keep_within = 0;  // Allocator::keep_within()
  /// Memory that the communication library takes for a communicator of several ranks, counted as "NCCL".
  int64_t communicator_bytes = 0;
  /// Stands for a GPU: Device::staging() is memory of the host, and a stream that multiplies matrices has a workspace.
  bool gpu = false;
};

/// Returns the bytes that a plan may take of a device's memory: 99 %, since planned peaks have an error of up to 1 %.
constexpr int64_t planned_limit(int64_t memory) { return memory / 100 * 99; }

class DryDevice : public Device {
 public:
  using Device::Device;
  bool dry() const final { return true; }
  /// Returns the entries since the last clear().
  virtual const DryRecord& record() const = 0;
  virtual void clear() = 0;
  /// Adds a collective to the record, for communicators.
  virtual void exchange(const Stream& stream, WorkKind kind, DryExchange exchange) = 0;
};

/// @throws InvalidArgument for threads < 0.
[[nodiscard]] std::shared_ptr<DryDevice> make_dry_device(const DryDeviceOptions& options = {});

}  // namespace sherd
