#include <sherd/comm/mpi/detail/process_group.h>

#include <fmt/format.h>

#include <limits>

#include <sherd/comm/bootstrap/detail/mpi_process.h>

namespace sherd::mpi {

bool has_sum(DType dtype, int64_t elements) {
  return (dtype == DType::f32 || dtype == DType::f64) && elements <= std::numeric_limits<int>::max();
}

ProcessGroup::ProcessGroup(MPI_Comm job, std::span<const int> processes, uint64_t id,
                           std::chrono::milliseconds limit, const std::string& name)
    : id_(id) {
  // Ends the process at the limit: MPI offers no way to cancel the call below.
  const MpiDeadline deadline(limit, fmt::format("making MPI's communicator for the ranks of '{}'", name));
  MPI_Group everybody = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(job, &everybody), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(everybody, static_cast<int>(processes.size()), processes.data(), &members),
            "MPI_Group_incl");
  // Two groups may be made at the same time by threads of one process: the tag tells them apart. 32767 is
  // what every MPI has.
  constexpr uint64_t kTags = 32767;
  check_mpi(MPI_Comm_create_group(job, members, static_cast<int>(id % kTags), &comm_),
            "MPI_Comm_create_group");
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Group_free(&members), "MPI_Group_free");
  check_mpi(MPI_Group_free(&everybody), "MPI_Group_free");
}

MPI_Request ProcessGroup::start(const Reduction& r) const {
  MPI_Request request = MPI_REQUEST_NULL;
  const MPI_Datatype type = r.dtype == DType::f64 ? MPI_DOUBLE : MPI_FLOAT;
  if (r.scatter)
    check_mpi(MPI_Ireduce_scatter_block(r.send, r.recv, r.elements, type, MPI_SUM, comm_, &request),
              "MPI_Ireduce_scatter_block");
  else
    check_mpi(MPI_Iallreduce(MPI_IN_PLACE, r.recv, r.elements, type, MPI_SUM, comm_, &request),
              "MPI_Iallreduce");
  return request;
}

void ProcessGroup::free() {
  if (comm_ != MPI_COMM_NULL) check_mpi(MPI_Comm_free(&comm_), "MPI_Comm_free");
}

}  // namespace sherd::mpi
