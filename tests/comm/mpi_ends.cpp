// Ends of processes of mpirun: two of them make worlds that one process leaves long before the other, or that
// are never made. Ends with 0 when all was right.
#include <fmt/format.h>
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sherd/base/error.h>
#include <sherd/comm/bootstrap/detail/mpi_bootstrap.h>
#include <sherd/comm/bootstrap/detail/mpi_process.h>
#include <sherd/comm/mpi/detail/mpi_world.h>

namespace {

using namespace std::chrono_literals;
using sherd::Job;

void require(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

auto make_world(const Job& job, const std::string& name, std::chrono::milliseconds timeout) {
  const std::vector<std::shared_ptr<sherd::Device>> device{
      sherd::make_cpu_device({.label = "rank", .threads = 1})};
  const std::vector<int> process_of{0, 1};
  return sherd::make_mpi_world(device, process_of, job.store, {.timeout = timeout, .name = name});
}

// Files that rank 0 writes without a collective: the other process does not end before it.
void one_ends_late(const Job& job) {
  auto world = make_world(job, "late", 60s);
  if (job.environment.rank == 0) std::this_thread::sleep_for(11s);
  world.clear();
  require(!sherd::ends_without_finalize(), "a rank that ended late was taken for lost");
}

// The error of process 0 when the other does not make the world with it.
std::string failure(const Job& job, const std::string& name, std::chrono::milliseconds timeout) {
  try {
    make_world(job, name, timeout);
    return "no failure";
  } catch (const sherd::CommError& e) {
    return e.what();
  }
}

void one_does_not_come(const Job& job) {
  if (job.environment.rank == 0) {
    const std::string said = failure(job, "absent", 300ms);
    require(said.find("waited 300 ms for processes 1") != said.npos, said);
    require(sherd::ends_without_finalize(), "the exit would wait for the other process");
  }
  job.store->barrier("absent", job.environment.rank, 2, 30s);
}

// The other one is there, and fails before MPI makes the communicator, for which all are needed.
void one_fails_meanwhile(const Job& job) {
  if (job.environment.rank == 0) {
    const std::string said = failure(job, "failed", 60s);
    require(said == "the other has no memory", said);
  } else {
    const sherd::MpiOptions options;
    job.store->set("failed/here/1", fmt::format("{}, {} and {}", options.max_message, options.reduction_piece,
                                                options.library_order));
    std::this_thread::sleep_for(300ms);
    announce(*job.store, {1, "the other has no memory"});
  }
  job.store->barrier("failed", job.environment.rank, 2, 30s);
}

// Both are alive, so that MPI can end as it should: the communicator is made after all.
void finish(const Job& job) {
  if (job.environment.rank == 1) {
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Comm_idup(MPI_COMM_WORLD, &comm, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
}

}  // namespace

int main() {
  try {
    const Job job = sherd::mpi_bootstrap(20s);
    require(job.environment.size == 2, "usage: mpirun -n 2 mpi_ends");
    one_ends_late(job);
    one_does_not_come(job);
    one_fails_meanwhile(job);
    finish(job);
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "mpi_ends: {}\n", e.what());
    return 1;
  }
}
