#include <sherd/comm/launcher.h>

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include <sherd/comm/core/detail/abort_domain.h>
#include <sherd/comm/local/local_communicator.h>
#include <sherd/comm/bootstrap/detail/mpi_bootstrap.h>
#include <sherd/comm/nccl/nccl_world.h>

namespace sherd {
namespace {

/// Cores this process may run on.
int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

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
    } catch (const local::PeerFailure&) {
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
    own.world->leave();  // who waits for a call that is not queued is told at once
    own.device->compute().synchronize();
  } catch (...) {
    failure.add(std::current_exception());
    own.device->heard();  // what fails in consequence needs no mention
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

std::shared_ptr<Device> make_device(const LaunchOptions& options, int rank, int gpu, int threads) {
  DeviceOptions device{.label = fmt::format("rank {}", rank),
                       .threads = threads,
                       .kernels = options.kernels,
                       .memory_limit = options.memory_limit,
                       .max_queued_work = options.max_queued_work,
                       .max_queued_bytes = options.max_queued_bytes,
                       .tf32 = options.tf32,
                       .symmetric_products = options.symmetric_products};
  if (options.device == "cpu") return make_cpu_device(device);
  if (options.device != "cuda")
    throw InvalidArgument(fmt::format("device '{}' is unknown; use 'cpu' or 'cuda'", options.device));
  device.ordinal = gpu % std::max(1, cuda_device_count());
  return make_cuda_device(device);
}

NcclOptions nccl_options(const LaunchOptions& options) {
  return {.timeout = options.timeout,
          .exact_order = options.nccl_exact_order,
          .check_calls = options.nccl_check_calls,
          .register_buffers = options.nccl_register_buffers,
          .windows = options.nccl_windows};
}

/// Whether this process is one of several that make up the job.
bool in_a_job(const LaunchOptions& options) {
  const std::string& how = options.bootstrap;
  if (how != "env" && how != "mpi" && how != "none")
    throw InvalidArgument(fmt::format("bootstrap '{}' is unknown; use 'env', 'mpi' or 'none'", how));
  if (how == "none") return false;
  const JobHint hint = job_in_environment();
  if (options.comm == "nccl") return how == "mpi" || hint.present;
  if (options.comm == "local" && hint.processes > 1)
    throw InvalidArgument(fmt::format(
        "{} is {}: this is one of {} processes, and with --comm local each of them would run all "
        "ranks by itself; give --comm nccl to make them the ranks of one job, or --bootstrap none "
        "where each is to run alone",
        hint.variable, hint.processes, hint.processes));
  return false;
}

/// NCCL gives each rank a GPU of its own.
void require_gpus(int ranks, const LaunchOptions& options) {
  if (options.comm != "nccl" || options.device != "cuda") return;
  const int gpus = cuda_device_count();
  if (gpus > 0 && ranks > gpus)
    throw InvalidArgument(fmt::format(
        "{} ranks with --comm nccl on {} GPU{}: NCCL takes one GPU a rank; use --comm local, whose "
        "ranks share GPUs, or at most {} rank{}",
        ranks, gpus, gpus > 1 ? "s" : "", gpus, gpus > 1 ? "s" : ""));
}

/// This process's rank of the job, and the job's store.
MpiLaunch join_job(const LaunchOptions& options) {
  if (options.bootstrap == "mpi") return mpi_bootstrap(options.timeout);
  const LaunchEnvironment job = from_environment();
  return {job, connect_store(job, options.timeout)};
}

void launch_process(int ranks, const LaunchOptions& options, int threads,
                    const std::function<void(RankContext&)>& body) {
  // The store comes first: a rank that cannot go on then tells the others, which would wait for it.
  const auto [job, store] = join_job(options);
  RankContext context;
  try {
    if (job.size != ranks)
      throw InvalidArgument(fmt::format(
          "--ranks {}: the job has {} process{}; give --ranks {}, or --bootstrap none for ranks that "
          "are threads of this process",
          ranks, job.size, job.size > 1 ? "es" : "", job.size));
    context.device = make_device(options, job.rank, job.local_rank, threads);
    context.world = make_nccl_world(context.device, store, job.rank, job.size, nccl_options(options));
  } catch (const std::exception& e) {
    try {
      announce(*store, {job.rank, fmt::format("rank {} failed before it joined: {}", job.rank, e.what())});
    } catch (const std::exception&) {  // the store is gone, which the others see for themselves
    }
    throw;
  }
  FirstFailure failure;
  run_rank(context, body, failure);
  failure.rethrow_if_any();
}

std::vector<std::shared_ptr<Communicator>> make_world(const LaunchOptions& options,
                                                      std::span<const std::shared_ptr<Device>> devices) {
  if (options.comm == "local") return make_local_world(devices, options.timeout);
  if (options.comm != "nccl")
    throw InvalidArgument(fmt::format("comm '{}' is unknown; use 'local' or 'nccl'", options.comm));
  return make_nccl_world(devices, nccl_options(options));
}

}  // namespace

void launch(int ranks, const LaunchOptions& options, const std::function<void(RankContext&)>& body) {
  if (ranks < 1) throw InvalidArgument(fmt::format("launch of {} ranks; use at least 1", ranks));
  if (options.threads_per_rank < 0)
    throw InvalidArgument(fmt::format(
        "threads_per_rank is {}; use 0 for an equal share of the cores, or more", options.threads_per_rank));
  const int threads =
      options.threads_per_rank > 0 ? options.threads_per_rank : std::max(1, available_cores() / ranks);

  if (in_a_job(options)) return launch_process(ranks, options, threads, body);
  require_gpus(ranks, options);
  std::vector<std::shared_ptr<Device>> devices;
  for (int r = 0; r < ranks; ++r) devices.push_back(make_device(options, r, r, threads));
  const auto worlds = make_world(options, devices);
  std::vector<RankContext> contexts;
  for (size_t r = 0; r < devices.size(); ++r) contexts.push_back({devices[r], worlds[r]});
  launch(std::move(contexts), body);
}

void launch(std::vector<RankContext> ranks, const std::function<void(RankContext&)>& body) {
  FirstFailure failure;
  {
    std::vector<std::jthread> rank_threads;
    try {
      for (auto& context : ranks) rank_threads.emplace_back([&] { run_rank(context, body, failure); });
    } catch (...) {  // the system has no further thread
      failure.add(std::current_exception());
      ranks[rank_threads.size()].world->abort(text_of(std::current_exception()));
    }
  }
  failure.rethrow_if_any();
}

}  // namespace sherd
