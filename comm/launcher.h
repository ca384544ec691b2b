// Launcher of ranks as threads of this process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sherd/comm/core/communicator.h>
#include <sherd/comm/launch_options.h>

namespace sherd {

/// Context of a rank.
struct RankContext {
  std::shared_ptr<Device> device;
  std::shared_ptr<Communicator> world;
  /// Divisions and limits of this host's processors (processors.h); often empty.
  std::string processors;
};

/// Runs body on `ranks` threads with one device and one world communicator each, and returns when all have
/// ended. In a job of several processes (BackendKind) it runs body once, as this process's rank.
///
/// A rank succeeds when its body has returned and its streams have succeeded. Errors of its compute stream,
/// and unreported errors of other streams of its body, count as thrown by the rank.
///
/// When a rank throws, the group is aborted so that no other rank waits for it. After all have ended, the
/// *first* failure is rethrown with its original type; CommErrors that only report a peer's failure never
/// hide the cause. A rank that fails before it has a world reports this to the other ranks of its job. A rank
/// whose body returns ends, with a CommError at once, the ranks that wait for a call it has not made, now or
/// later. Without such ranks nothing fails. Errors that all ranks catch need not end the launch:
/// Communicator::recover().
///
/// @throws InvalidArgument: ranks < 1; ranks differs from the job's number of processes; more threads with
/// NCCL than GPUs; job.bootstrap = none with BackendKind::mpi; BackendKind::local in an environment of
/// several processes, each of which would run all ranks by itself, unless job.bootstrap is Bootstrap::none.
void launch(int ranks, const LaunchOptions& options, const std::function<void(RankContext&)>& body);
inline void launch(int ranks, const std::function<void(RankContext&)>& body) { launch(ranks, {}, body); }

/// Runs body for ranks that have their devices and worlds already, each on a thread of its own.
void launch(std::vector<RankContext> ranks, const std::function<void(RankContext&)>& body);

}  // namespace sherd
