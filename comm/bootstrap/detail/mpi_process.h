// MPI in this process: one initialization and one finalization, shared by all users.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace sherd {

/// Checks the result of the MPI call `what`. @throws CommError with MPI's error text unless it is
/// MPI_SUCCESS.
void check_mpi(int result, const char* what);

/// Initialises MPI unless it is initialised: for any thread (MPI_THREAD_MULTIPLE, or the library's highest
/// level), finalised when the process exits. MPI_Finalize waits for all processes. A process that exits with
/// a failure waits for at most 5 s, since peers that detect the failure may have exited already. @throws
/// CommError.
void initialize_mpi();

/// Rank and size of this process in MPI_COMM_WORLD.
struct MpiPlace {
  int rank = 0, size = 1;
};
/// Returns the place. @throws CommError when MPI is not initialised, or for one thread alone.
MpiPlace mpi_place();

/// Returns whether threads may call MPI at the same time (MPI_THREAD_MULTIPLE). MPI is initialised.
bool mpi_allows_all_threads();

/// Lets the process exit without MPI_Finalize, which would wait for ever for processes that have ended.
void mpi_ends_without_finalize() noexcept;
/// Returns whether mpi_ends_without_finalize() was called.
bool ends_without_finalize() noexcept;
/// Turns a later exit code 0 into 1, for a failure that is found when no caller is left to throw it to.
void mpi_ends_badly() noexcept;

/// Time limit for a blocking call of MPI, which cannot be cancelled. When a guard has existed for `limit`,
/// the process ends with exit code 1 and a line on stderr that names the call, instead of hanging.
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
