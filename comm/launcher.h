// Runs ranks as threads of this process.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sherd/comm/communicator.h>

namespace sherd {

struct LaunchOptions {
  /// "cpu", or "cuda": rank r uses GPU r modulo the number of them; in a job of several processes r is the
  /// process's number on its host.
  std::string device = "cpu";
  /// "local": ranks are threads of this process. "nccl": one GPU a rank; threads of this process, or, in a
  /// job of several processes, this process is one rank of `ranks`.
  std::string comm = "local";
  /// How the processes of a job of NCCL find each other. "env": by RANK, WORLD_SIZE and so on, a job when
  /// those of a launcher are there (see from_environment). "mpi": always a job, started by mpirun or srun.
  /// "none": there is no job; ranks are threads of this process whatever the environment says.
  std::string bootstrap = "env";
  /// Of NCCL, each as in NcclOptions.
  bool nccl_exact_order = false;
  bool nccl_check_calls = false;
  bool nccl_register_buffers = false;
  bool nccl_windows = false;
  /// CUDA: products of f32 matrices in tf32.
  bool tf32 = false;
  /// CUDA: "blocks" or "hopper", see DeviceOptions.
  std::string symmetric_products = "blocks";
  /// "cpu" or "reference".
  std::string kernels = "cpu";
  /// Kernel threads per rank; 0 = cores of this process / ranks, at least 1.
  int threads_per_rank = 0;
  /// Largest number of bytes held per rank; 0 = no limit.
  int64_t memory_limit = 0;
  /// How far a rank's host thread may be ahead of its device, as in DeviceOptions.
  int64_t max_queued_work = RunAhead::kWork;
  int64_t max_queued_bytes = RunAhead::kBytes;
  /// A collective that waits longer than this for a peer fails with a CommError naming who is missing.
  std::chrono::milliseconds timeout{300'000};
};

/// What a rank is given.
struct RankContext {
  std::shared_ptr<Device> device;
  std::shared_ptr<Communicator> world;
};

/// Runs body on `ranks` threads with one device and one world communicator each, and returns when all are
/// done. In a job of several processes (LaunchOptions::comm) it runs body once, as this process's rank.
///
/// A rank whose body returns has not succeeded before its streams have: what its compute stream failed with,
/// and what streams of its body failed with before anybody heard of it, count as thrown by the rank.
///
/// When a rank throws, the group is aborted so that no other rank waits for it, and after all have ended the
/// *first* failure is rethrown with its original type (CommErrors that only report a peer's failure never
/// hide the cause). A rank that fails before it has a world tells the others of its job. A rank whose body
/// returns while others wait for a call that it has not made, or begin to, ends those with a CommError at once;
/// nobody minds where nobody waits. Errors that all ranks catch need not end the launch:
/// Communicator::recover().
///
/// @throws InvalidArgument: ranks < 1; ranks is not the job's number of processes; more threads with NCCL
/// than GPUs; comm "local" in an environment of several processes, each of which would run all ranks by
/// itself, unless bootstrap is "none".
void launch(int ranks, const LaunchOptions& options, const std::function<void(RankContext&)>& body);
inline void launch(int ranks, const std::function<void(RankContext&)>& body) { launch(ranks, {}, body); }

/// The same for ranks that have their devices and worlds already, each on a thread of its own.
void launch(std::vector<RankContext> ranks, const std::function<void(RankContext&)>& body);

}  // namespace sherd
