// One process of a job that mpirun starts: finds the others by MPI, or by mpirun's variables alone, and talks
// to them through the store. Ends with 0 when all was right.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include <sherd/base/error.h>
#include <sherd/comm/bootstrap/detail/mpi_bootstrap.h>

namespace {

using namespace std::chrono_literals;
using sherd::Job;

void require(bool good, const char* what) {
  if (!good) throw std::runtime_error(what);
}

Job join(const std::string& how) {
  if (how == "mpi") return sherd::mpi_bootstrap(20s);
  require(how == "env", "usage: mpi_ranks mpi|env SIZE");
  const sherd::LaunchEnvironment e = sherd::from_environment();
  return {e, sherd::connect_store(e, 20s)};
}

/// MPI has handed on a secret: a client without it is refused.
void require_secret(sherd::LaunchEnvironment e) {
  e.secret.clear();
  e.without_secret = sherd::WithoutSecret::everywhere;
  try {
    sherd::connect_store(e, 20s);
  } catch (const sherd::CommError& error) {
    require(std::string(error.what()).find("SHERD_JOB_SECRET") != std::string::npos, error.what());
    return;
  }
  throw std::runtime_error("a stranger got into the store");
}

void run(const std::string& how, int size) {
  const auto [e, store] = join(how);
  if (how == "mpi" && e.rank != 0) require_secret(e);
  const std::string own = std::to_string(e.rank);
  require(e.size == size, "the job has another size");
  require(e.one_host && e.local_rank == e.rank, "all processes are on this host");
  store->set("from/" + own, "rank " + own);
  store->barrier("here", e.rank, size, 20s);
  for (int r = 0; r < size; ++r)
    require(store->get("from/" + std::to_string(r)) == "rank " + std::to_string(r), "a value got lost");
  store->add("sum", e.rank + 1);
  store->barrier("added", e.rank, size, 20s);
  require(store->add("sum", 0) == size * (size + 1) / 2, "a sum is wrong");
  store->barrier("done", e.rank, size, 20s);
  if (how == "mpi") {  // MPI is initialised now; a second job of the same processes has a store of its own
    const Job again = sherd::mpi_bootstrap(20s);
    require(again.environment.rank == e.rank && !again.store->get("sum"), "not a store of its own");
    again.store->barrier("again", e.rank, size, 20s);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    require(argc == 3, "usage: mpi_ranks mpi|env SIZE");
    run(argv[1], std::stoi(argv[2]));
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "mpi_ranks: {}\n", e.what());
    return 1;
  }
}
