// One process of a job that mpirun starts: reads its own copy of weights or of a checkpoint by one call of the API.
//   copies_ranks save FOLDER SEED        writes a checkpoint of random weights, alone
//   copies_ranks import|stored|resume|load STRATEGY PATH
// Ends with 1 and the error where the call throws. tests/programs/runs/mpi_copies_test.sh starts it.
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/comm/bootstrap/bootstrap.h>

#include "support/pieces.h"

namespace {

using namespace sherd;

void save(const std::string& folder, uint64_t seed) {
  test::launch(1, [&](RankContext& r) {
    test::Pieces model(r, {});
    model.wrap({}, {.seed = seed});
    CheckpointSaver(r.world, checkpoint_tensors(model, nullptr), {.folder = folder}).save({.step = 1});
  });
}

void load(const std::string& call, Strategy strategy, const std::string& path) {
  const int ranks = job_in_environment().processes;
  test::launch(ranks, {.device = {.threads = 1}, .backend = BackendKind::mpi}, [&](RankContext& r) {
    test::Pieces model(r, {.shard = ranks});
    model.wrap({.strategy = strategy});
    if (call == "import") {
      import_weights(model, path);
    } else if (call == "stored") {
      import_weights(model, path, StoredForms{});
    } else if (call == "resume") {
      resume(path, model, nullptr, {.optimizer = false});
    } else if (call == "load") {
      CheckpointReader reader = CheckpointReader::open(path);
      load_checkpoint(reader, model, nullptr, {.optimizer = false});
    } else {
      throw std::runtime_error("unknown call " + call);
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (arguments.at(0) == "save")
      save(arguments.at(1), std::stoull(arguments.at(2)));
    else
      load(arguments.at(0), parse_strategy(arguments.at(1)), arguments.at(2));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "copies_ranks: %s\n", e.what());
    return 1;
  }
}
