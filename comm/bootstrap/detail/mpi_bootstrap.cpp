#include <sherd/comm/bootstrap/detail/mpi_bootstrap.h>

#include <fmt/format.h>
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include <sherd/base/error.h>
#include <sherd/comm/bootstrap/detail/mpi_process.h>
#include <sherd/comm/bootstrap/detail/socket.h>
#include <sherd/comm/bootstrap/detail/store_client.h>
#include <sherd/comm/bootstrap/detail/store_proof.h>
#include <sherd/comm/bootstrap/detail/tcp_store.h>
#include <sherd/comm/bootstrap/processors.h>
#include <sherd/comm/core/detail/timeouts.h>

namespace sherd {
namespace {

/// Makes MPI return errors instead of ending the process. Restores the handler at the end: MPI_COMM_WORLD may
/// have other users.
class ErrorsReturn {
 public:
  ErrorsReturn() {
    check_mpi(MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before_), "MPI_Comm_get_errhandler");
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  ~ErrorsReturn() {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, before_);
    MPI_Errhandler_free(&before_);
  }
  ErrorsReturn(const ErrorsReturn&) = delete;

 private:
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

/// Cores that are this process's share. Each core is shared alike by the processes that may run on it, which
/// launchers often bind to some cores each.
int share_of_cores(MPI_Comm neighbours, int count) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) CPU_ZERO(&mine);
  std::vector<cpu_set_t> all(static_cast<size_t>(count));
  check_mpi(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, neighbours),
            "MPI_Allgather");
  double share = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &mine)) continue;
    share += 1.0 / static_cast<double>(
                       std::ranges::count_if(all, [&](const auto& set) { return CPU_ISSET(core, &set); }));
  }
  // Thirds and the like may add up to a little less than a whole.
  return std::max(1, static_cast<int>(share + 1e-6));
}

/// Minimum time for the bootstrap: other processes may still be loading, also with a short timeout of calls.
constexpr std::chrono::seconds kShortestStart{60};

/// Rank 0's address and its expectations of clients; a port of 0 reports that it could not listen.
struct Address {
  std::array<char, 256> host{};
  int port = 0;
  std::array<char, store_wire::kNonceBytes> secret{};
};

}  // namespace

Job mpi_bootstrap(std::chrono::milliseconds timeout, const StoreOptions& options) {
  // Longer than the timeout of the store's connection, whose error names the rank.
  const MpiDeadline deadline(std::max<std::chrono::milliseconds>(2 * comm::bounded(timeout), kShortestStart),
                             "MPI bootstrap");
  initialize_mpi();
  const ErrorsReturn errors_return;
  Job job;
  LaunchEnvironment& e = job.environment;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &e.rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &e.size), "MPI_Comm_size");
  MPI_Comm neighbours = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, e.rank, MPI_INFO_NULL, &neighbours),
            "MPI_Comm_split_type");
  check_mpi(MPI_Comm_rank(neighbours, &e.local_rank), "MPI_Comm_rank");
  int on_host = 0;
  check_mpi(MPI_Comm_size(neighbours, &on_host), "MPI_Comm_size");
  e.one_host = on_host == e.size;
  // Collective over the processes of the host.
  e.cores = std::min(share_of_cores(neighbours, on_host), host_processors().at_once);
  check_mpi(MPI_Comm_free(&neighbours), "MPI_Comm_free");
  if (e.size == 1) {
    job.store = make_memory_store();
    return job;
  }

  Address address;
  std::string failure;
  if (e.rank == 0) {
    std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
    int length = 0;
    check_mpi(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name");
    const char* const given = std::getenv("SHERD_STORE_HOST");
    const std::string host = given && *given ? given : e.one_host ? "127.0.0.1" : name.data();
    host.copy(address.host.data(), address.host.size() - 1);
    try {
      const std::string secret = store_proof::random_bytes();
      secret.copy(address.secret.data(), address.secret.size());
      const bool exactly = e.one_host || (is_address(host) && !is_loopback(host));  // as connect_store()
      const auto server =
          std::make_shared<ServerStore>(exactly ? address.host.data() : "", 0, e.size, options.linger,
                                        std::string(), StoreGate{secret, options.log});
      address.port = server->port();
      job.store = server;
    } catch (const std::exception& error) {
      failure = error.what();  // the others wait for the broadcast
    }
  }
  // All processes call it, also after a failure on rank 0: port 0 reports that.
  check_mpi(MPI_Bcast(&address, sizeof address, MPI_BYTE, 0, MPI_COMM_WORLD), "MPI_Bcast");
  if (address.port == 0)
    throw CommError(
        failure.empty() ? "MPI bootstrap: rank 0 could not open its store; its message says why" : failure,
        0);
  e.store_host = address.host.data();
  e.store_port = address.port;
  e.secret.assign(address.secret.data(), address.secret.size());
  // All ranks connect or none continues: else rank 0, and its store, could exit before the last one connects.
  std::exception_ptr unreachable;
  try {
    // Not connect_store(): SHERD_STORE_HOST may name another address of one host than its loopback.
    if (e.rank != 0) job.store = std::make_shared<ClientStore>(e.store_host, e, timeout);
  } catch (const std::exception&) {
    unreachable = std::current_exception();
  }
  int connected = unreachable ? 0 : 1, all_connected = 0;
  check_mpi(MPI_Allreduce(&connected, &all_connected, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD), "MPI_Allreduce");
  if (unreachable) std::rethrow_exception(unreachable);
  if (all_connected == 0)
    throw CommError(
        fmt::format("MPI bootstrap: another process could not reach the store of rank 0 at {}:{}; its "
                    "message says why (SHERD_STORE_HOST names rank 0's host as the others reach it)",
                    e.store_host, e.store_port));
  return job;
}

}  // namespace sherd
