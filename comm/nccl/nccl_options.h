// Options of the NCCL backend.
#pragma once

#include <chrono>
#include <string>

#include <sherd/comm/core/flight_options.h>

namespace sherd {

struct NcclOptions {
  /// Time after which an issued call that is not done fails. launch() puts LaunchOptions::timeout here.
  std::chrono::milliseconds timeout{300'000};
  /// launch() puts LaunchOptions::flight_recorder here. An operation counts as handed over, not as done, once
  /// NCCL has it.
  FlightRecorderOptions flight_recorder = {};
  /// Interval between the watchdog's polls for NCCL errors, late calls and other ranks' failures.
  std::chrono::milliseconds poll{100};
  /// Computes reductions of floating-point tensors with exactly the bits (and the NaN) that Communicator
  /// specifies: slices are exchanged and summed by sherd, in the fixed tree. Same bytes as NCCL's own, more
  /// memory and launches.
  bool exact_order = false;
  /// Compares each call between the ranks of its group through the store beforehand. Different calls then
  /// fail with a message that names both, and late ranks are named. Slow: for tests and for debugging a hang.
  bool check_calls = false;
  /// Registers the memory of collectives with NCCL (ncclCommRegister) at first use. For buffers that keep
  /// their addresses, such as those of units.
  bool register_buffers = false;
  /// Communicator::make_buffers() allocates from NCCL (ncclMemAlloc), in one block, and BufferSet::share()
  /// registers that as a symmetric window (ncclCommWindowRegister, NCCL 2.27 and newer). A block has a
  /// granularity of 2 MiB or, where GPUs share memory by multicast, NCCL's own granularity, of which only the
  /// 2 MiB are counted. Where NCCL has no windows or the ranks' buffers differ, memory is as without the
  /// option, and BufferSet::describe() gives the reason. NCCL may use another order of summation in windows. All-gathers
  /// there are done by copy engines where NCCL can (NCCL_CTA_POLICY_ZERO, 2.28 and newer), and take no multiprocessor.
  bool windows = false;
  /// Leaves NCCL the sums of NVLink's switches (NVLS), whose order differs between calls: faster where a host
  /// has such switches, but a run repeated has other bits in fp32 sums. Otherwise NCCL_NVLS_ENABLE is set to 0
  /// before NCCL's first call, unless the environment sets it.
  bool nvls = false;
  /// Thread blocks that a collective takes of the device at most (NCCL's maxCTAs); 0: NCCL's choice. Kernels of all
  /// communicators of a step fit on a device beside each other when communicators * max_ctas is below its multiprocessors.
  int max_ctas = 0;
  /// launch() accepts several ranks that are threads of this process. For tests: the driver makes memory calls of one GPU
  /// wait for what runs on the others of the process, and NCCL's kernels wait for each other (NCCL's issue 787).
  bool threads = false;
  /// Prefix of the world's keys in the store: one name per world made from one store.
  std::string name = "world";
};

}  // namespace sherd
