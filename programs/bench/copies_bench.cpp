#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <sherd/checkpoint/same_copies.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/comm/launcher.h>

#include "commands.h"
#include "measure.h"

namespace sherd_bench {
namespace {

using namespace sherd;
namespace fs = std::filesystem;

struct CopiesBench {
  std::string folder = ".";
  double gib = 1;    // in the file
  bool f32 = false;  // bf16 otherwise, as weights are published
  int ranks = 1;     // threads; of a job that mpirun started, its processes
  int tensors = 192, rounds = 9;
};

class Weights : public ModuleBase {
 public:
  explicit Weights(const CopiesBench& b) {
    const auto rows = static_cast<int64_t>(b.gib * (1 << 30) / (b.f32 ? 4096 : 2048) / b.tensors);
    for (int i = 0; i < b.tensors; ++i) param(fmt::format("layers.{}.weight", i), {rows, 1024}, constant(1));
  }
};

void drop_from_cache(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

/// Prints medians of the comparison and of loading in turn, from the disk and from the system's cache. Writes below
/// `folder` (a folder of its own, removed at the end).
void run_copies(const CopiesBench& b) {
  const bool job = job_in_environment().present;
  const int ranks = job ? job_in_environment().processes : b.ranks;
  launch(ranks, {.backend = job ? BackendKind::mpi : BackendKind::local}, [&](RankContext& rank) {
    const fs::path folder = fs::path(b.folder) / "sherd_bench.copies";
    const bool first = rank.world->rank() == 0;
    Weights model(b);
    fully_shard(model, DeviceMesh(rank.world, {{"shard", ranks}}));
    export_weights(model, folder.string() + "/",
                   {.dtype = b.f32 ? DType::f32 : DType::bf16, .max_shard_bytes = int64_t{256} << 20});
    const auto seconds = [&](const auto& work) {
      rank.world->barrier(rank.device->compute());
      rank.device->compute().synchronize();
      const auto begin = std::chrono::steady_clock::now();
      work();
      rank.world->barrier(rank.device->compute());
      rank.device->compute().synchronize();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    int64_t compared = 0, loaded = 0;
    for (const bool cold : {true, false}) {
      std::vector<double> compare, load;
      for (int i = 0; i < b.rounds; ++i) {
        if (cold && first) drop_from_cache(folder);
        compare.push_back(seconds([&] {
          require_same_copies(*rank.world, weights_copies(folder, FileSystem::posix(), &compared));
        }));
        if (cold && first) drop_from_cache(folder);
        load.push_back(seconds(
            [&] { loaded = import_weights(model, folder, {.compare_copies = false}).counts.bytes_read; }));
      }
      if (!first) continue;
      fmt::print(
          "{} {}, {}: comparison {:.2f} ms, {:.2f} MB; loading {:.0f} ms, {:.0f} MB of each; {:.2f} % of the "
          "time\n",
          ranks, job ? "processes" : "ranks", cold ? "from the disk" : "cached", median(compare) * 1e3,
          static_cast<double>(compared) * 1e-6, median(load) * 1e3, static_cast<double>(loaded) * 1e-6,
          median(compare) / median(load) * 100);
    }
    rank.world->barrier(rank.device->compute());
    rank.device->compute().synchronize();
    if (first) fs::remove_all(folder);
  });
}

}  // namespace

Command copies_command(CLI::App& program) {
  const auto b = std::make_shared<CopiesBench>();
  CLI::App* app = program.add_subcommand(
      "copies", "comparison of copies of weights beside loading them; over mpirun's processes");
  app->add_option("--folder", b->folder, "where to write (on the disk in question)")->capture_default_str();
  app->add_option("--gib", b->gib, "size of the file")
      ->check(CLI::Range(0.01, 1024.0))
      ->capture_default_str();
  app->add_flag("--f32", b->f32, "store f32, not bf16");
  app->add_option("--tensors", b->tensors, "of equal sizes")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app->add_option("--ranks", b->ranks, "threads of this process")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--rounds", b->rounds, "of both in turn; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  return {app, [b] { return run_copies(*b), true; }};
}

}  // namespace sherd_bench
