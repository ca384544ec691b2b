// Options of launch(), by subject. Messages name an option by its path in LaunchOptions, with a value as
// `job.bootstrap = none`, so that a program can name its own flag instead.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include <sherd/comm/bootstrap/job.h>
#include <sherd/comm/core/flight_options.h>
#include <sherd/comm/mpi/mpi_options.h>
#include <sherd/comm/nccl/nccl_options.h>
#include <sherd/kernels/device/device.h>

namespace sherd {

/// The kernels of a CPU: vectorised ones, or slow and obvious ones.
enum class CpuKernels { cpu, reference };

/// How a GPU forms Newton-Schulz's symmetric products, as in DeviceOptions.
enum class SymmetricProducts { blocks, hopper };

/// How ranks talk: one line each of the table in backend.h.
enum class BackendKind {
  /// Ranks are threads of this process.
  local,
  /// One GPU a rank; threads of this process, or, in a job of several processes, this process is one rank.
  nccl,
  /// Each rank is a process that MPI's launcher started, and computes on CPUs.
  mpi
};

/// What each rank computes on.
struct RankDeviceOptions {
  /// cuda: rank r uses GPU r modulo the number of them; in a job of several processes r is the process's
  /// number on its host.
  DeviceKind kind = DeviceKind::cpu;
  CpuKernels kernels = CpuKernels::cpu;
  /// Kernel threads per rank; 0 = cores of this process / ranks, with BackendKind::mpi this process's share of its
  /// host's cores; at least 1.
  int threads = 0;
  /// Largest number of bytes held per rank; 0 = no limit.
  int64_t memory_limit = 0;
  /// How far a rank's host thread may be ahead of its device, as in DeviceOptions.
  int64_t max_queued_work = RunAhead::kWork;
  int64_t max_queued_bytes = RunAhead::kBytes;
  /// CUDA: products of f32 matrices in tf32.
  bool tf32 = false;
  /// CUDA.
  SymmetricProducts symmetric_products = SymmetricProducts::blocks;
};

struct LaunchOptions {
  RankDeviceOptions device = {};
  JobOptions job = {};
  BackendKind backend = BackendKind::local;
  NcclOptions nccl = {};
  MpiOptions mpi = {};
  /// A collective that waits longer than this for a peer fails with a CommError naming who is missing.
  std::chrono::milliseconds timeout{300'000};
  /// What each rank remembers of its collectives, and where that is written when the launch fails.
  FlightRecorderOptions flight_recorder = {};
};

/// Names as enumerators are spelled. parse_: @throws InvalidArgument listing the legal names. name_of:
/// @throws InvalidArgument for what is no enumerator. Those of backends are in backend.h.
DeviceKind parse_device_kind(std::string_view name);
CpuKernels parse_cpu_kernels(std::string_view name);
SymmetricProducts parse_symmetric_products(std::string_view name);
const char* name_of(DeviceKind k);
const char* name_of(CpuKernels k);
const char* name_of(SymmetricProducts s);

}  // namespace sherd
