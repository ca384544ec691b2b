// Launcher of ranks as threads of this process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <sherd/comm/communicator.h>
#include <sherd/comm/launch_options.h>

namespace sherd {

/// What a rank is given.
struct RankContext {
  std::shared_ptr<Device> device;
  std::shared_ptr<Communicator> world;
};

/// Runs body on `ranks` threads with one device and one world communicator each, and returns when all are
/// done. In a job of several processes (BackendKind) it runs body once, as this process's rank.
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
/// than GPUs; job.bootstrap = none with BackendKind::mpi; BackendKind::local in an environment of several processes, each of which would run all ranks by
/// itself, unless job.bootstrap is Bootstrap::none.
void launch(int ranks, const LaunchOptions& options, const std::function<void(RankContext&)>& body);
inline void launch(int ranks, const std::function<void(RankContext&)>& body) { launch(ranks, {}, body); }

/// The same for ranks that have their devices and worlds already, each on a thread of its own.
void launch(std::vector<RankContext> ranks, const std::function<void(RankContext&)>& body);

}  // namespace sherd
