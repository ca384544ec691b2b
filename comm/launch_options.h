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

/// CPU kernels: vectorised, or the slow reference.
enum class CpuKernels { cpu, reference };

/// Method by which a GPU computes Newton-Schulz's symmetric products, as in DeviceOptions.
enum class SymmetricProducts { automatic, blocks, hopper };

/// Attention kernels on a GPU, as in DeviceOptions. automatic is called "auto".
enum class AttentionMethod { automatic, own, cudnn };

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

/// Device of each rank.
struct RankDeviceOptions {
  /// cuda: rank r uses GPU r modulo the number of GPUs; in a job of several processes r is the process's
  /// index on its host.
  DeviceKind kind = DeviceKind::cpu;
  CpuKernels kernels = CpuKernels::cpu;
  /// Kernel threads per rank; 0 = cores of this process / ranks (with BackendKind::mpi this process's share
  /// of its host's cores); at least 1. Cores are those of the affinity mask, or fewer by the control group's CPU quota.
  /// On hosts with several NUMA nodes, CPU ranks that are threads stay on one node each (processors.h).
  int threads = 0;
  /// Maximum bytes allocated per rank; 0 = no limit.
  int64_t memory_limit = 0;
  /// Maximum run-ahead of a rank's host thread before its device, as in DeviceOptions.
  int64_t max_queued_work = RunAhead::kWork;
  int64_t max_queued_bytes = RunAhead::kBytes;
  /// CUDA: products of f32 matrices in tf32.
  bool tf32 = false;
  /// CUDA only.
  SymmetricProducts symmetric_products = SymmetricProducts::automatic;
  /// CUDA only.
  AttentionMethod attention = AttentionMethod::automatic;
};

struct LaunchOptions {
  RankDeviceOptions device = {};
  JobOptions job = {};
  BackendKind backend = BackendKind::local;
  NcclOptions nccl = {};
  MpiOptions mpi = {};
  /// Time after which a collective that waits for a peer fails with a CommError naming the missing ranks.
  std::chrono::milliseconds timeout{300'000};
  /// Flight recorder of each rank's collectives, and the folder for its files when the launch fails.
  FlightRecorderOptions flight_recorder = {};
};

/// Names as enumerators are spelled. parse_: @throws InvalidArgument listing the legal names. name_of:
/// @throws InvalidArgument for a value that is not an enumerator. Names of backends are in backend.h.
DeviceKind parse_device_kind(std::string_view name);
CpuKernels parse_cpu_kernels(std::string_view name);
SymmetricProducts parse_symmetric_products(std::string_view name);
AttentionMethod parse_attention(std::string_view name);
const char* name_of(DeviceKind k);
const char* name_of(CpuKernels k);
const char* name_of(SymmetricProducts s);
const char* name_of(AttentionMethod a);

}  // namespace sherd
