#include <sherd/comm/bootstrap/detail/mpi_process.h>

#include <fmt/format.h>
#include <mpi.h>

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <sherd/base/error.h>
#include <sherd/base/program.h>

namespace sherd {
namespace {

constexpr std::chrono::seconds kFinalizeAfterFailure{5};

// State of MPI's end. One per process, as MPI itself.
struct End {
  std::atomic<bool> without_finalize{false}, badly{false};
};
End& the_end() {
  static End end;
  return end;
}

[[noreturn]] void leave_at_once(int status) {
  std::fflush(nullptr);
  _exit(status);
}

// Finalizes MPI. An on_exit() handler, which exit() calls with the process's status.
void end_mpi(int status, void*) {
  const bool found_late = status == 0 && the_end().badly;
  int finalized = 0;
  if (!the_end().without_finalize && MPI_Finalized(&finalized) == MPI_SUCCESS && !finalized) {
    if (status != 0)
      // MPI_Finalize waits for peers that may have exited after the same failure; this thread bounds the
      // wait.
      std::thread([status] {
        std::this_thread::sleep_for(kFinalizeAfterFailure);
        leave_at_once(status);
      }).detach();
    MPI_Finalize();
  }
  if (found_late) leave_at_once(1);
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
  the_end();  // made before, it goes after the function below
  on_exit(end_mpi, nullptr);
}

bool mpi_allows_all_threads() {
  int level = 0;
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  return level >= MPI_THREAD_MULTIPLE;
}

MpiPlace mpi_place() {
  int initialized = 0, level = 0;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  if (!initialized)
    throw CommError("MPI is not initialised; join the job with job.bootstrap = mpi, or call MPI_Init_thread");
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  // The engine's thread calls MPI, and not the thread that initialized it.
  if (level < MPI_THREAD_SERIALIZED)
    throw CommError(
        "MPI was initialised for one thread alone; initialise it with MPI_THREAD_MULTIPLE, or leave it to "
        "launch()");
  MpiPlace place;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &place.rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &place.size), "MPI_Comm_size");
  return place;
}

void mpi_ends_without_finalize() noexcept { the_end().without_finalize = true; }

bool ends_without_finalize() noexcept { return the_end().without_finalize; }

void mpi_ends_badly() noexcept { the_end().badly = true; }

MpiDeadline::MpiDeadline(std::chrono::milliseconds limit, std::string what)
    : watch_([this, limit, what = std::move(what)] {
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, limit, [this] { return over_; })) return;
        print_error(
            "sherd",
            fmt::format("{}: waited {} ms in MPI for the other processes: one has stopped, has gone, or "
                        "cannot be reached; MPI's calls cannot be left, so this process ends",
                        what, limit.count()));
        leave_at_once(1);
      }) {}

MpiDeadline::~MpiDeadline() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  watch_.join();
}

}  // namespace sherd
