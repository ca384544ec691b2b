#include <sherd/comm/bootstrap/detail/mpi_bootstrap.h>

#include <fmt/format.h>
#include <mpi.h>

#include <array>
#include <cstdlib>
#include <string>

#include <sherd/comm/bootstrap/detail/tcp_store.h>
#include <sherd/kernels/device/error.h>

namespace sherd {
namespace {

void check(int result, const char* what) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw CommError(fmt::format("MPI bootstrap: {}: {}", what, text));
}

/// Errors as results, not as the end of the process; undone at the end, for the world may be another's, too.
class ErrorsReturn {
 public:
  ErrorsReturn() {
    check(MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before_), "MPI_Comm_get_errhandler");
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  ~ErrorsReturn() {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, before_);
    MPI_Errhandler_free(&before_);
  }
  ErrorsReturn(const ErrorsReturn&) = delete;

 private:
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

void initialize() {
  int done = 0, provided = 0;
  check(MPI_Initialized(&done), "MPI_Initialized");
  if (done) return;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  std::atexit([] {
    int finalized = 0;
    if (MPI_Finalized(&finalized) == MPI_SUCCESS && !finalized) MPI_Finalize();
  });
}

/// Where rank 0 listens; a port of 0 says that it could not.
struct Address {
  std::array<char, 256> host{};
  int port = 0;
};

}  // namespace

Job mpi_bootstrap(std::chrono::milliseconds timeout) {
  initialize();
  const ErrorsReturn errors_return;
  Job job;
  LaunchEnvironment& e = job.environment;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &e.rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &e.size), "MPI_Comm_size");
  MPI_Comm neighbours = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, e.rank, MPI_INFO_NULL, &neighbours),
        "MPI_Comm_split_type");
  check(MPI_Comm_rank(neighbours, &e.local_rank), "MPI_Comm_rank");
  int on_host = 0;
  check(MPI_Comm_size(neighbours, &on_host), "MPI_Comm_size");
  e.one_host = on_host == e.size;
  check(MPI_Comm_free(&neighbours), "MPI_Comm_free");
  if (e.size == 1) {
    job.store = make_memory_store();
    return job;
  }

  Address address;
  std::string failure;
  if (e.rank == 0) {
    std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
    int length = 0;
    check(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name");
    const char* const given = std::getenv("SHERD_STORE_HOST");
    const std::string host = given && *given ? given : e.one_host ? "127.0.0.1" : name.data();
    host.copy(address.host.data(), address.host.size() - 1);
    try {
      const auto server = std::make_shared<ServerStore>(e.one_host ? address.host.data() : "", 0, e.size,
                                                        std::chrono::seconds(10));
      address.port = server->port();
      job.store = server;
    } catch (const CommError& error) {
      failure = error.what();  // the others wait for the broadcast
    }
  }
  check(MPI_Bcast(&address, sizeof address, MPI_BYTE, 0, MPI_COMM_WORLD), "MPI_Bcast");
  if (address.port == 0)
    throw CommError(
        failure.empty() ? "MPI bootstrap: rank 0 could not open its store; its message says why" : failure,
        0);
  e.store_host = address.host.data();
  e.store_port = address.port;
  if (e.rank != 0) job.store = connect_store(e, timeout);
  return job;
}

}  // namespace sherd
