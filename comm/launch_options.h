// Options of launch(), by subject. Messages name an option by its path in LaunchOptions, with a value as
// `job.bootstrap = none`, so that a program can name its own flag instead.
#pragma once

#include <chrono>

#include <sherd/comm/bootstrap/job.h>
#include <sherd/comm/core/flight_options.h>
#include <sherd/comm/mpi/mpi_options.h>
#include <sherd/comm/nccl/nccl_options.h>
#include <sherd/kernels/device/device_options.h>

namespace sherd {

/// Backend of the ranks' communication: one row each of the table in backend.h.
enum class BackendKind {
  /// Ranks are threads of this process.
  local,
  /// One GPU per rank. Ranks are threads of this process; in a job of several processes this process is one
  /// rank.
  nccl,
  /// Each rank is a process that MPI's launcher started, and computes on CPUs.
  mpi
};

struct LaunchOptions {
  /// Device of each rank.
  DeviceOptions device = {};
  JobOptions job = {};
  BackendKind backend = BackendKind::local;
  NcclOptions nccl = {};
  MpiOptions mpi = {};
  /// Time after which a collective that waits for a peer fails with a CommError naming the missing ranks.
  std::chrono::milliseconds timeout{300'000};
  /// Flight recorder of each rank's collectives, and the folder for its files when the launch fails.
  FlightRecorderOptions flight_recorder = {};
};

}  // namespace sherd
