#include <sherd/comm/backend.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <numeric>
#include <string>
#include <utility>

#include <sherd/comm/local/detail/local_communicator.h>
#include <sherd/comm/mpi/detail/mpi_world.h>
#include <sherd/comm/nccl/detail/nccl_world.h>
#include <sherd/kernels/device/error.h>

namespace sherd {
namespace {

using Worlds = std::vector<std::shared_ptr<Communicator>>;
using Devices = std::span<const std::shared_ptr<Device>>;

NcclOptions nccl_options(const LaunchOptions& options) {
  NcclOptions nccl = options.nccl;
  nccl.timeout = options.timeout;
  nccl.flight_recorder = options.flight_recorder;
  return nccl;
}

const std::array kBackends{
    Backend{BackendKind::local, "local", false, false, [] { return true; },
            [](Devices devices, const LaunchOptions& o) -> Worlds {
              return make_local_world(devices, o.timeout, o.flight_recorder);
            },
            nullptr},
    Backend{BackendKind::nccl, "nccl", true, false, has_nccl_backend,
            [](Devices devices, const LaunchOptions& o) -> Worlds {
              return make_nccl_world(devices, nccl_options(o));
            },
            [](const Job& job, std::shared_ptr<Device> device, const LaunchOptions& o) {
              const LaunchEnvironment& e = job.environment;
              return make_nccl_world(std::move(device), job.store, e.rank, e.size, nccl_options(o));
            }},
    Backend{BackendKind::mpi, "mpi", true, true, has_mpi_backend, nullptr,
            [](const Job& job, std::shared_ptr<Device> device, const LaunchOptions& o) {
              MpiOptions mpi = o.mpi;
              mpi.timeout = o.timeout;
              mpi.flight_recorder = o.flight_recorder;
              std::vector<int> processes(static_cast<size_t>(job.environment.size));
              std::iota(processes.begin(), processes.end(), 0);
              return make_mpi_world({&device, 1}, processes, job.store, mpi).at(0);
            }},
};

[[noreturn]] void unknown(const std::string& value) {
  std::vector<std::string> names;
  for (const Backend& b : kBackends) names.push_back(fmt::format("'{}'", b.name));
  throw InvalidArgument(fmt::format("backend = {} is unknown; use {}", value, fmt::join(names, " or ")));
}

}  // namespace

std::span<const Backend> backends() { return kBackends; }

const Backend& backend_of(BackendKind kind) {
  for (const Backend& b : kBackends)
    if (b.kind == kind) return b;
  unknown(std::to_string(static_cast<int>(kind)));
}

BackendKind parse_backend(std::string_view name) {
  for (const Backend& b : kBackends)
    if (name == b.name) return b.kind;
  unknown(std::string(name));
}

const char* name_of(BackendKind kind) { return backend_of(kind).name; }

}  // namespace sherd
