#include <sherd/comm/bootstrap/job.h>

#include <fmt/format.h>

#include <array>

#include <sherd/comm/bootstrap/detail/mpi_bootstrap.h>
#include <sherd/kernels/device/error.h>

namespace sherd {
namespace {

struct BootstrapName {
  Bootstrap bootstrap;
  const char* name;
};
constexpr std::array<BootstrapName, 3> kNames{
    {{Bootstrap::env, "env"}, {Bootstrap::mpi, "mpi"}, {Bootstrap::none, "none"}}};

}  // namespace

Bootstrap parse_bootstrap(std::string_view name) {
  for (const BootstrapName& n : kNames)
    if (name == n.name) return n.bootstrap;
  throw InvalidArgument(fmt::format("job.bootstrap = {} is unknown; use 'env', 'mpi' or 'none'", name));
}

const char* name_of(Bootstrap b) {
  for (const BootstrapName& n : kNames)
    if (b == n.bootstrap) return n.name;
  throw InvalidArgument(
      fmt::format("job.bootstrap = {} is unknown; use Bootstrap::env, mpi or none", static_cast<int>(b)));
}

bool is_part_of_a_job(const JobOptions& options) {
  switch (options.bootstrap) {
    case Bootstrap::env:
      return job_in_environment().present;
    case Bootstrap::mpi:
      return true;
    case Bootstrap::none:
      return false;
  }
  name_of(options.bootstrap);
  return false;
}

Job join_job(const JobOptions& options, std::chrono::milliseconds timeout) {
  if (options.bootstrap == Bootstrap::mpi) return mpi_bootstrap(timeout, options.store);
  const LaunchEnvironment environment = from_environment();
  return {environment, connect_store(environment, timeout, options.store)};
}

}  // namespace sherd
