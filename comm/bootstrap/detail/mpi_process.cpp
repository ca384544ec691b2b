#include <sherd/comm/bootstrap/detail/mpi_process.h>

#include <fmt/format.h>
#include <mpi.h>

#include <atomic>
#include <cstdlib>

#include <sherd/kernels/device/error.h>

namespace sherd {
namespace {

// As there is one MPI in a process, there is one end of it.
std::atomic<bool>& without_finalize() {
  static std::atomic<bool> without{false};
  return without;
}

}  // namespace

void check_mpi(int result, const char* what) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw CommError(fmt::format("MPI: {}: {}", what, text));
}

void initialize_mpi() {
  int done = 0, provided = 0;
  check_mpi(MPI_Initialized(&done), "MPI_Initialized");
  if (done) return;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  without_finalize();  // made before, it goes after the function below
  std::atexit([] {
    int finalized = 0;
    if (!without_finalize() && MPI_Finalized(&finalized) == MPI_SUCCESS && !finalized) MPI_Finalize();
  });
}

MpiPlace mpi_place() {
  int initialized = 0, level = 0;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  if (!initialized)
    throw CommError("MPI is not initialised; join the job with job.bootstrap = mpi, or call MPI_Init_thread");
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  if (level < MPI_THREAD_SERIALIZED)
    throw CommError(
        "MPI was initialised for one thread alone; initialise it with MPI_THREAD_MULTIPLE, or leave it to "
        "launch()");
  MpiPlace place;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &place.rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &place.size), "MPI_Comm_size");
  return place;
}

void mpi_ends_without_finalize() noexcept { without_finalize() = true; }

bool ends_without_finalize() noexcept { return without_finalize(); }

}  // namespace sherd
