// Options of the NCCL backend.
#pragma once

#include <chrono>
#include <string>

#include <sherd/comm/core/flight_options.h>

namespace sherd {

struct NcclOptions {
  /// A call that is not done this long after it was issued fails. launch() puts LaunchOptions::timeout here.
  std::chrono::milliseconds timeout{300'000};
  /// launch() puts LaunchOptions::flight_recorder here. An operation counts as handed over, not as done, once NCCL
  /// has it.
  FlightRecorderOptions flight_recorder = {};
  /// How often the watchdog looks for errors of NCCL, late calls and other ranks' failures.
  std::chrono::milliseconds poll{100};
  /// Reductions of floating-point tensors with exactly the bits (and the NaN) that Communicator promises:
  /// slices are exchanged and summed up here, in the fixed tree. Same bytes as NCCL's own, more memory and
  /// launches.
  bool exact_order = false;
  /// Before each call the ranks of its group compare it through the store, so that different calls fail with
  /// a message that names both, and late ranks are named. Slow: for tests and for finding a hang.
  bool check_calls = false;
  /// Registers the memory of collectives with NCCL (ncclCommRegister) when it is first seen. For buffers that
  /// keep their addresses, such as those of units.
  bool register_buffers = false;
  /// Communicator::make_buffers() takes the memory from NCCL (ncclMemAlloc), in one block, and
  /// BufferSet::share() registers that as a symmetric window (ncclCommWindowRegister, NCCL 2.27 and newer). A
  /// block has a granularity of 2 MiB or, where GPUs share memory by multicast, as much as NCCL wants, of which
  /// only the 2 MiB are counted. Where NCCL has no windows or the ranks' buffers differ, memory is as it would
  /// be without the option, and BufferSet::describe() says why. NCCL may add up in another order in windows.
  bool windows = false;
  /// Names the world's keys in the store: one per world made from one store.
  std::string name = "world";
};

}  // namespace sherd
