#include "copies_bench.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <sherd/checkpoint/same_copies.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/comm/launcher.h>

#include "measure.h"

namespace sherd_bench {
namespace {

using namespace sherd;
namespace fs = std::filesystem;

class Weights : public Module {
 public:
  explicit Weights(const CopiesBench& b) {
    const auto rows = static_cast<int64_t>(b.gib * (1 << 30) / (b.f32 ? 4096 : 2048) / b.tensors);
    for (int i = 0; i < b.tensors; ++i) param(fmt::format("layers.{}.weight", i), {rows, 1024}, constant(1));
  }

 protected:
  Tensor forward(const Tensor& x) override { return x; }
  Tensor backward(const Tensor& dy) override { return dy; }
};

void drop_from_cache(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

}  // namespace

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

}  // namespace sherd_bench
