// MPI in this process: one initialization and one finalization, shared by all users.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace sherd {

/// @throws CommError with MPI's own words for a result of `what` that is not MPI_SUCCESS.
void check_mpi(int result, const char* what);

/// Initialises MPI unless it is initialised: for any thread (MPI_THREAD_MULTIPLE, or the library's highest
/// level), finalised when the process exits. MPI_Finalize waits for all processes. A process that exits with
/// a failure waits for at most 5 s, since peers that detect the failure may have exited already. @throws
/// CommError.
void initialize_mpi();

/// Who this process is in MPI_COMM_WORLD.
struct MpiPlace {
  int rank = 0, size = 1;
};
/// @throws CommError when MPI is not initialised, or for one thread alone.
MpiPlace mpi_place();

/// Whether threads may call MPI at the same time (MPI_THREAD_MULTIPLE). MPI is initialised.
bool mpi_allows_all_threads();

/// From now on the process exits without MPI_Finalize, which would wait for ever for processes that are gone.
void mpi_ends_without_finalize() noexcept;
/// Whether it will exit so.
bool ends_without_finalize() noexcept;
/// Turns a later exit code 0 into 1, for a failure that is found when no caller is left to throw it to.
void mpi_ends_badly() noexcept;

/// MPI's blocking calls cannot be left, whatever becomes of the other processes. When a guard has lived for `limit`, the
/// process ends with exit code 1 and a line on stderr that says what it waited for: it never hangs.
class MpiDeadline {
 public:
  MpiDeadline(std::chrono::milliseconds limit, std::string what);
  ~MpiDeadline();
  MpiDeadline(const MpiDeadline&) = delete;
  MpiDeadline& operator=(const MpiDeadline&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread watch_;  // last: it uses all of these
};

}  // namespace sherd
