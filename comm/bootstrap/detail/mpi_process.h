// MPI in this process: its beginning and its end, of which there is one each, whatever uses it.
#pragma once

namespace sherd {

/// @throws CommError with MPI's own words for a result of `what` that is not MPI_SUCCESS.
void check_mpi(int result, const char* what);

/// Initialises MPI when nobody has: for any thread (MPI_THREAD_MULTIPLE, or what the library has), finalised
/// when the process exits. @throws CommError.
void initialize_mpi();

/// Who this process is in MPI_COMM_WORLD.
struct MpiPlace {
  int rank = 0, size = 1;
};
/// @throws CommError when MPI is not initialised, or for one thread alone.
MpiPlace mpi_place();

/// From now on the process exits without MPI_Finalize, which would wait for ever for processes that are gone.
void mpi_ends_without_finalize() noexcept;
/// Whether it will exit so.
bool ends_without_finalize() noexcept;

}  // namespace sherd
