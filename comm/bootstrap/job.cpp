#include <sherd/comm/bootstrap/job.h>

#include <sherd/base/enum_table.h>
#include <sherd/comm/bootstrap/detail/mpi_bootstrap.h>

namespace sherd {
namespace {

constexpr EnumTable<Bootstrap, 3> kBootstraps{"env", "mpi", "none"};

}  // namespace

Bootstrap parse_bootstrap(std::string_view name) { return kBootstraps.parse("job.bootstrap", name); }
const char* name_of(Bootstrap b) { return kBootstraps.checked_name("job.bootstrap", b); }

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
