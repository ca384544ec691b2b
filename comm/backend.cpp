#include <sherd/comm/backend.h>

#include <fmt/format.h>

#include <array>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <sherd/base/enum_table.h>
#include <sherd/base/error.h>
#include <sherd/comm/bootstrap/detail/store_proof.h>
#include <sherd/comm/local/detail/local_communicator.h>
#include <sherd/comm/mpi/detail/mpi_world.h>
#include <sherd/comm/nccl/detail/nccl_world.h>

namespace sherd {
namespace {

using Worlds = std::vector<std::shared_ptr<Communicator>>;
using Devices = std::span<const std::shared_ptr<Device>>;

/// Returns the recorders' options of a launch. Its ranks share the store; without a store they are threads of
/// this process.
FlightRecorderOptions flight_recorder(const LaunchOptions& options, Store* store) {
  FlightRecorderOptions flights = options.flight_recorder;
  if (flights.folder.empty() || !flights.launch.empty()) return flights;
  for (const char c : store_proof::random_bytes().substr(0, 8))
    flights.launch += fmt::format("{:02x}", static_cast<unsigned char>(c));
  // The first rank's value wins, and all ranks get it. `sherd trace` leaves out files of other launches.
  if (store) flights.launch = store->set_once("flight recorder/launch", flights.launch);
  return flights;
}

NcclOptions nccl_options(const LaunchOptions& options, Store* store) {
  NcclOptions nccl = options.nccl;
  nccl.timeout = options.timeout;
  nccl.flight_recorder = flight_recorder(options, store);
  return nccl;
}

const std::array kBackends{
    Backend{BackendKind::local, "local", false, false, [] { return true; },
            [](Devices devices, const LaunchOptions& o) -> Worlds {
              return make_local_world(devices, o.timeout, flight_recorder(o, nullptr));
            },
            nullptr},
    Backend{BackendKind::nccl, "nccl", true, false, has_nccl_backend,
            [](Devices devices, const LaunchOptions& o) -> Worlds {
              return make_nccl_world(devices, nccl_options(o, nullptr));
            },
            [](const Job& job, std::shared_ptr<Device> device, const LaunchOptions& o) {
              const LaunchEnvironment& e = job.environment;
              return make_nccl_world(std::move(device), job.store, e.rank, e.size,
                                     nccl_options(o, job.store.get()));
            },
            [](const LaunchOptions& o) { set_nccl_environment(o.nccl); }},
    Backend{BackendKind::mpi, "mpi", true, true, has_mpi_backend, nullptr,
            [](const Job& job, std::shared_ptr<Device> device, const LaunchOptions& o) {
              MpiOptions mpi = o.mpi;
              mpi.timeout = o.timeout;
              mpi.flight_recorder = flight_recorder(o, job.store.get());
              std::vector<int> processes(static_cast<size_t>(job.environment.size));
              std::iota(processes.begin(), processes.end(), 0);
              return make_mpi_world({&device, 1}, processes, job.store, mpi).at(0);
            }},
};

[[noreturn]] void unknown(const std::string& value) {
  std::vector<const char*> names;
  for (const Backend& b : kBackends) names.push_back(b.name);
  refuse_name("backend", value, names);
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
