// Time of a step: its record played on a hardware profile.
#pragma once

#include <vector>

#include <sherd/kernels/device/dry/dry_device.h>
#include <sherd/kernels/device/trace.h>
#include <sherd/train/plan/hardware_profile.h>

namespace sherd {

/// Seconds. total = compute + exposed_communication + optimizer.
struct StepTime {
  double total = 0;
  double compute = 0;  // of operations before the update, and of memory that is returned and taken again
  double exposed_communication = 0;  // the compute stream waits before the update
  double optimizer = 0;              // update, with what it waits for
};

/// Returns the seconds of an operation by the rates: the larger of those of its FLOPs and of its bytes, those over the link to the
/// host at that link's. @param rates of the kinds in its step
double seconds_of(const Work& work, WorkKind kind, const HardwareProfile& hardware, const KindRates& rates);
/// Returns the seconds of a collective that nothing disturbs. @param bytes that a rank receives
/// @param here largest number of the group's ranks on one host
double seconds_of(double bytes, int ranks, int here, const HardwareProfile& hardware);

/// Returns the seconds of memory that the allocator returned at a limit and took again in the step.
double seconds_of_memory(const DryRecord& record, const HardwareProfile& hardware);

/// Plays the record: streams run beside each other and wait for events, the collectives of one link follow each
/// other, and the host waits where it synchronizes. Where collectives share cores with operations, these begin later by their time.
/// @param records where not null, receives each operation with its times in microseconds, as a Trace has them
[[nodiscard]] StepTime play(const DryRecord& record, const HardwareProfile& hardware,
                            std::vector<TraceRecord>* records = nullptr);

}  // namespace sherd
