#include <sherd/comm/launcher.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <sherd/comm/backend.h>
#include <sherd/comm/backend_choice.h>
#include <sherd/comm/bootstrap/processors.h>
#include <sherd/comm/watch/abort_domain.h>

namespace sherd {
namespace {

std::string text_of(const std::exception_ptr& e) noexcept {
  try {
    std::rethrow_exception(e);
  } catch (const std::exception& x) {
    return x.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

/// Keeps the failure that the launch is to report: the first one that does not merely report a peer's.
class FirstFailure {
 public:
  void add(const std::exception_ptr& e) {
    std::lock_guard lock(mutex_);
    // Ordered by type, not by time: a rank that reports a peer may end before the rank that failed.
    auto& slot = reports_a_peer(e) ? secondary_ : primary_;
    if (!slot) slot = e;
  }
  void rethrow_if_any() const {
    if (const auto& e = primary_ ? primary_ : secondary_) std::rethrow_exception(e);
  }

 private:
  static bool reports_a_peer(const std::exception_ptr& e) {
    try {
      std::rethrow_exception(e);
    } catch (const comm::PeerFailure&) {
      return true;
    } catch (...) {
      return false;
    }
  }

  std::mutex mutex_;
  std::exception_ptr primary_, secondary_;
};

void run_rank(RankContext& context, const std::function<void(RankContext&)>& body, FirstFailure& failure) {
  // The body may reset the context's members; the rank's end needs them.
  const RankContext own = context;
  try {
    body(context);
    own.world->leave();  // ranks that wait for a call that is not queued fail at once
    own.device->compute().synchronize();
  } catch (...) {
    failure.add(std::current_exception());
    own.device->heard();  // what fails in consequence needs no mention
    // Before leave(): the others report this cause and not the absence of the rank.
    own.world->abort(text_of(std::current_exception()));
    own.world->leave();  // recover() of the others waits no longer
  }
  // Peers may still read this rank's memory, and queued work of this rank theirs: no device goes before all
  // streams have run dry.
  try {
    own.device->compute().synchronize();
  } catch (...) {  // recorded above
  }
}

/// The ordinal of a GPU. Several ranks may share one. Without any, make_cuda_device() throws with the driver's reason.
int gpu_of(int rank) { return rank % std::max(1, cuda_device_count()); }

std::shared_ptr<Device> make_device(DeviceOptions options, int rank, int gpu, int threads) {
  options.label = fmt::format("rank {}", rank);
  options.threads = threads;
  name_of(options.kind);  // throws on an invalid enumerator
  if (options.kind == DeviceKind::cpu) return make_cpu_device(options);
  options.ordinal = gpu_of(gpu);
  return make_cuda_device(options);
}

/// Processors for a rank: its share of the host's, or those beside its GPU.
std::vector<int> processors_for(const HostProcessors& host, DeviceKind kind, int rank, int ranks) {
  return kind == DeviceKind::cpu ? processors_of(host, rank, ranks)
                                 : processors_beside(cuda_pci_address(gpu_of(rank)));
}

/// Names of the backends that `which` is true of, as values of the option.
template <class Which>
std::string backends_that(Which which) {
  std::vector<std::string> names;
  for (const Backend& b : backends())
    if (which(b)) names.push_back(fmt::format("backend = {}", b.name));
  return fmt::format("{}", fmt::join(names, " or "));
}

/// Returns whether this process is one of several processes of the job.
bool in_a_job(const LaunchOptions& options, const Backend& backend) {
  if (backend.joins_by_mpi) {
    if (options.job.bootstrap != Bootstrap::none) return true;
    throw InvalidArgument(fmt::format(
        "job.bootstrap = none with backend = {}: its ranks are the processes of a job; leave it out, or "
        "give {}, whose ranks can be threads",
        backend.name, backends_that([](const Backend& b) { return b.worlds_of_threads != nullptr; })));
  }
  const bool part = is_part_of_a_job(options.job);
  if (backend.join) return part;
  if (!part) return false;
  if (const std::string lone = lone_copies(options); !lone.empty()) throw InvalidArgument(lone);
  return false;
}

/// @throws InvalidArgument for ranks that are threads of this process where each needs a GPU of its own.
void require_gpus(int ranks, const LaunchOptions& options, const Backend& backend) {
  if (!backend.one_gpu_a_rank || options.device.kind != DeviceKind::cuda) return;
  const int gpus = cuda_device_count();
  if (gpus > 0 && ranks > gpus)
    throw InvalidArgument(fmt::format(
        "{} ranks with backend = {} on {} GPU{}: it takes one GPU a rank; use {}, whose ranks share GPUs, or "
        "at "
        "most {} rank{}",
        ranks, backend.name, gpus, gpus > 1 ? "s" : "",
        backends_that([](const Backend& b) { return !b.one_gpu_a_rank; }), gpus, gpus > 1 ? "s" : ""));
  if (ranks > 1 && !options.nccl.threads)
    throw InvalidArgument(fmt::format(
        "ranks = {} with backend = {} as threads of one process: a call for memory on one GPU waits there "
        "for "
        "the collectives of the others, which may wait for that rank; start a process for each GPU (`sherd "
        "run "
        "--nproc {} -- COMMAND`), or give {}",
        ranks, backend.name, ranks, backends_that([](const Backend& b) { return !b.one_gpu_a_rank; })));
}

/// Kernel threads of a rank that is a process, where neither the options nor the environment set them.
int threads_of(const LaunchEnvironment& environment, int ranks) {
  return environment.cores > 0 ? environment.cores : std::max(1, host_processors().at_once / ranks);
}

// Runs the body as this process's rank. A failure before the world exists is announced through the store.
void launch_process(int ranks, const LaunchOptions& options, const Backend& backend,
                    const std::function<void(RankContext&)>& body) {
  // The store comes first: a rank that cannot continue then reports it to the others, which would wait for
  // it.
  JobOptions joining = options.job;
  if (backend.joins_by_mpi) joining.bootstrap = Bootstrap::mpi;
  const Job job = join_job(joining, options.timeout);
  const int rank = job.environment.rank, size = job.environment.size;
  RankContext context;
  std::optional<BoundThread> bound;  // beside the GPU; a CPU rank has what its launcher gives it
  try {
    if (size != ranks && backend.joins_by_mpi)
      throw InvalidArgument(
          fmt::format("ranks = {} with backend = {}: the job has {} process{}; start it with `mpirun -n {}`, "
                      "or give ranks = {}",
                      ranks, backend.name, size, size > 1 ? "es" : "", ranks, size));
    if (size != ranks)
      throw InvalidArgument(
          fmt::format("ranks = {}: the job has {} process{}; give ranks = {}, or job.bootstrap = none for "
                      "ranks that are threads "
                      "of this process",
                      ranks, size, size > 1 ? "es" : "", size));
    const int threads =
        options.device.threads > 0 ? options.device.threads : threads_of(job.environment, ranks);
    if (options.device.kind == DeviceKind::cuda)
      bound.emplace(processors_beside(cuda_pci_address(gpu_of(job.environment.local_rank))));
    context.device = make_device(options.device, rank, job.environment.local_rank, threads);
    context.world = backend.join(job, context.device, options);
    context.processors = describe(host_processors());
  } catch (const std::exception& e) {
    try {
      announce(*job.store, {rank, fmt::format("rank {} failed before it joined: {}", rank, e.what())});
    } catch (const std::exception&) {  // the store is gone, which the others detect themselves
    }
    throw;
  }
  FirstFailure failure;
  run_rank(context, body, failure);
  failure.rethrow_if_any();
}

}  // namespace

void launch(int ranks, const LaunchOptions& options, const std::function<void(RankContext&)>& body) {
  if (ranks < 1) throw InvalidArgument(fmt::format("launch of {} ranks; use at least 1", ranks));
  const int asked = options.device.threads;
  if (asked < 0)
    throw InvalidArgument(
        fmt::format("device.threads = {}: use 0 for an equal share of the cores, or more", asked));
  const Backend& backend = backend_of(options.backend);
  if (backend.set_environment != nullptr) backend.set_environment(options);

  if (in_a_job(options, backend)) return launch_process(ranks, options, backend, body);
  require_gpus(ranks, options, backend);
  constexpr int kMostThreads = 1024;
  if (ranks > kMostThreads)
    throw InvalidArgument(
        fmt::format("launch of {} ranks as threads of one process; use at most {}, or the processes of a job",
                    ranks, kMostThreads));
  const HostProcessors host = host_processors();
  const std::string processors = describe(host);
  const int threads = asked > 0 ? asked : std::max(1, host.at_once / ranks);
  const DeviceKind kind = options.device.kind;
  std::vector<std::shared_ptr<Device>> devices;
  for (int r = 0; r < ranks; ++r) {
    const BoundThread bound(processors_for(host, kind, r, ranks));  // streams' threads, too
    devices.push_back(make_device(options.device, r, r, threads));
  }
  // On the caller's thread, before any rank runs: a failure here throws without an abort.
  auto worlds = backend.worlds_of_threads(devices, options);
  std::vector<RankContext> contexts;
  for (size_t r = 0; r < devices.size(); ++r)
    contexts.push_back({devices[r], std::move(worlds[r]), processors});
  launch(std::move(contexts), [&](RankContext& context) {
    const BoundThread bound(processors_for(host, kind, context.world->rank(), ranks));
    body(context);
  });
}

void launch(std::vector<RankContext> ranks, const std::function<void(RankContext&)>& body) {
  FirstFailure failure;
  {
    // Its destruction joins all threads, before failures are read.
    std::vector<std::jthread> rank_threads;
    try {
      for (auto& context : ranks) rank_threads.emplace_back([&] { run_rank(context, body, failure); });
    } catch (...) {  // the system has no further thread
      failure.add(std::current_exception());
      ranks[rank_threads.size()].world->abort(text_of(std::current_exception()));
    }
  }
  try {
    // Side by side: a library may end a communicator only together with its peers'.
    std::vector<std::jthread> ends;
    for (auto& context : ranks) ends.emplace_back([&world = context.world] { world = nullptr; });
  } catch (const std::system_error&) {  // no further thread; the others end below
  }
  failure.rethrow_if_any();
}

}  // namespace sherd
