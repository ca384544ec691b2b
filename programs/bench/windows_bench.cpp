#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <sherd/kernels/device/file_memory.h>
#include <sherd/kernels/ops.h>
#include <sherd/optim/rest_windows.h>

#include "commands.h"
#include "measure.h"

namespace sherd_bench {
namespace {

using namespace sherd;

struct WindowsBench {
  std::string folder = std::filesystem::temp_directory_path().string();
  int64_t mib = 1024, window_mib = 64;
  int rounds = 5;
};

/// State on the host passed through device windows, beside reading and writing the same bytes of the same file in blocks of 8 MiB,
/// as dd does. Both move each byte out of the file and back; rounds alternate.
bool run_windows(const WindowsBench& b) {
  const auto device = make_cpu_device({.offload_folder = b.folder});
  Stream& compute = device->compute();
  const int64_t count = b.mib << 18, bytes = 4 * count;
  const Tensor rest = make_state(*device, Place::host, count, DType::f32, "bench");
  RestWindows windows(*device, b.window_mib << 20);
  windows.announce(rest);
  windows.allocate();
  const auto seconds_of = [&](const auto& work) {
    compute.synchronize();
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const auto pass_all = [&] {
    std::vector<Tensor> open;
    RestStep step(&windows, compute, {});
    RestPass pass(&windows, compute, [&] {
      for (const Tensor& t : open) ops::scale(compute, t, 1);
      open.clear();
    });
    for (int64_t at = 0, n = 0; at < count; at += n) {
      n = pass.fit({rest}, count - at);
      open.push_back(pass.open(rest, at, n, true));
    }
    pass.finish();
    step.end();
    compute.synchronize();
  };
  constexpr int64_t kBlock = int64_t{8} << 20;
  std::vector<char> block(kBlock);
  const auto copy_all = [&] {
    auto* const data = static_cast<char*>(rest.raw());
    for (int64_t at = 0; at < bytes; at += kBlock) {
      const int64_t n = std::min(kBlock, bytes - at);
      device->tier_file()->read(block.data(), data + at, n);
      device->tier_file()->write(data + at, block.data(), n);
    }
  };
  pass_all();
  copy_all();
  std::vector<double> passes, copies, ratios;
  for (int i = 0; i < b.rounds; ++i) {
    passes.push_back(seconds_of(pass_all));
    copies.push_back(seconds_of(copy_all));
    ratios.push_back(copies.back() / passes.back());
  }
  const auto rate = [&](const std::vector<double>& seconds) {
    return 2 * static_cast<double>(bytes) / median(seconds) / (1 << 20);
  };
  fmt::print("{} MiB in '{}', windows of {} MiB: {:.0f} MiB/s; plain copies {:.0f} MiB/s; ratio {:.2f}\n",
             b.mib, b.folder, b.window_mib, rate(passes), rate(copies), median(ratios));
  return median(ratios) >= 0.8;
}

}  // namespace

Command windows_command(CLI::App& program) {
  const auto b = std::make_shared<WindowsBench>();
  CLI::App* app = program.add_subcommand(
      "windows", "state in a file passed through windows, beside plain copies of the file; 1 below 0.8");
  app->add_option("--folder", b->folder, "folder of the file")->capture_default_str();
  app->add_option("--mib", b->mib, "size of the state")->capture_default_str()->check(CLI::Range(1, 1 << 20));
  app->add_option("--window-mib", b->window_mib, "size of each window")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app->add_option("--rounds", b->rounds)->capture_default_str()->check(CLI::Range(1, 1000));
  return {app, [b] { return run_windows(*b); }};
}

}  // namespace sherd_bench
