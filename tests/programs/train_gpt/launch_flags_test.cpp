// The library's options of a launch, as train_gpt's flags set and call them.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "train_gpt/settings/launch_flags.h"

namespace train_gpt {
namespace {

TEST(LaunchFlags, SetTheOptionsOfALaunch) {
  TrainConfig c;
  c.device = sherd::DeviceKind::cuda;
  c.comm = sherd::BackendKind::nccl;
  c.bootstrap = sherd::Bootstrap::mpi;
  c.kernels = sherd::KernelSet::reference;
  c.symmetric_products = sherd::SymmetricProducts::hopper;
  c.attention = sherd::AttentionMethod::own;
  c.tf32 = c.nccl_exact_order = c.nccl_check_calls = c.nccl_register_buffers = c.nccl_windows = c.nccl_nvls =
      c.nccl_threads = true;
  c.mpi_library_order = true;
  c.nccl_max_ctas = 8;
  c.threads = 3;
  c.memory_limit = 4096;
  c.max_queued = 7;
  c.comm_timeout = 1.5;
  c.flight_recorder = "flights";
  const sherd::LaunchOptions o = launch_options(c);
  EXPECT_EQ(o.device.kind, sherd::DeviceKind::cuda);
  EXPECT_EQ(o.device.kernels, sherd::KernelSet::reference);
  EXPECT_EQ(o.device.symmetric_products, sherd::SymmetricProducts::hopper);
  EXPECT_EQ(o.device.attention, sherd::AttentionMethod::own);
  EXPECT_TRUE(o.device.tf32);
  EXPECT_EQ(o.device.threads, 3);
  EXPECT_EQ(o.device.memory_limit, 4096);
  EXPECT_EQ(o.device.max_queued_work, 7);
  EXPECT_EQ(o.job.bootstrap, sherd::Bootstrap::mpi);
  EXPECT_EQ(o.backend, sherd::BackendKind::nccl);
  EXPECT_TRUE(o.nccl.exact_order && o.nccl.check_calls && o.nccl.register_buffers && o.nccl.windows &&
              o.nccl.nvls && o.nccl.threads);
  EXPECT_EQ(o.nccl.max_ctas, 8);
  EXPECT_TRUE(o.mpi.library_order);
  EXPECT_EQ(o.timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(o.flight_recorder.folder, "flights");
}

TEST(LaunchFlags, TheDefaultsAreTheLibrarys) {
  const sherd::LaunchOptions flags = launch_options({}), own;
  EXPECT_EQ(flags.device.kind, own.device.kind);
  EXPECT_EQ(flags.device.kernels, own.device.kernels);
  EXPECT_EQ(flags.device.symmetric_products, own.device.symmetric_products);
  EXPECT_EQ(flags.device.attention, own.device.attention);
  EXPECT_EQ(flags.device.threads, own.device.threads);
  EXPECT_EQ(flags.device.max_queued_work, own.device.max_queued_work);
  EXPECT_EQ(flags.job.bootstrap, own.job.bootstrap);
  EXPECT_EQ(flags.backend, own.backend);
  EXPECT_EQ(flags.timeout, own.timeout);
  EXPECT_EQ(flags.flight_recorder.folder, own.flight_recorder.folder);
}

TEST(LaunchFlags, TakeTheOptionsPlaceInMessages) {
  EXPECT_EQ(
      with_flags("ranks = 3: the job has 2 processes; give ranks = 2, or job.bootstrap = none for ranks that "
                 "are threads of this process"),
      "--ranks 3: the job has 2 processes; give --ranks 2, or --bootstrap none for ranks that are threads of "
      "this process");
  EXPECT_EQ(with_flags("with backend = local each; give backend = nccl"),
            "with --comm local each; give --comm nccl");
  EXPECT_EQ(with_flags("late. nccl.check_calls compares; see nccl.windows."),
            "late. --nccl-check-calls compares; see --nccl-windows.");
  EXPECT_EQ(with_flags("(nccl.windows)"), "(--nccl-windows)");
  EXPECT_EQ(
      with_flags(
          "the model only (LoadOptions::optimizer = false), or new state (LoadOptions::allow_new_state): x"),
      "the model only (--resume-parts model), or new state (--allow-new-state): x");
}

TEST(LaunchFlags, AJobsSecretThatMpiDoesNotReadIsNamed) {
  const auto lines = [](sherd::BackendKind comm, sherd::Bootstrap bootstrap, const char* name) {
    TrainConfig c;
    c.comm = comm;
    c.bootstrap = bootstrap;
    return idle_variables(
        c, [name](const char* asked) { return std::string_view(asked) == name ? "x" : nullptr; });
  };
  for (const char* name : {"SHERD_JOB_SECRET", "SHERD_JOB_SECRET_FILE"}) {
    for (const auto& found : {lines(sherd::BackendKind::mpi, sherd::Bootstrap::env, name),
                              lines(sherd::BackendKind::nccl, sherd::Bootstrap::mpi, name)}) {
      ASSERT_EQ(found.size(), 1u);
      EXPECT_TRUE(found[0].starts_with(std::string(name) + " is not used")) << found[0];
    }
    EXPECT_TRUE(lines(sherd::BackendKind::nccl, sherd::Bootstrap::env, name).empty());
    EXPECT_TRUE(lines(sherd::BackendKind::local, sherd::Bootstrap::env, name).empty());
  }
  EXPECT_TRUE(lines(sherd::BackendKind::mpi, sherd::Bootstrap::env, "OTHER").empty());
}

TEST(LaunchFlags, LeaveAllOtherWordsAlone) {
  for (const char* text :
       {"", "4 ranks on the backend", "LaunchOptions::nccl.windows", "my.backend = x", "nccl.windows_report",
        "nccl.windows.txt", "/data/device.kind2", "raise the timeout"})
    EXPECT_EQ(with_flags(text), text);
}

TEST(LaunchFlags, AreFlagsOfTheProgram) {
  const auto flags = to_json(TrainConfig());
  for (const char* option :
       {"job.bootstrap", "device.kind", "device.kernels", "device.threads", "device.memory_limit",
        "device.max_queued_work", "device.tf32", "device.symmetric_products", "device.attention",
        "nccl.exact_order", "nccl.check_calls", "nccl.register_buffers", "nccl.windows",
        "flight_recorder.folder", "ranks = ", "backend = ", "timeout = "}) {
    std::string name = with_flags(option);
    ASSERT_TRUE(name.starts_with("--")) << option;
    name = name.substr(2, name.find(' ') - 2);
    for (char& c : name)
      if (c == '-') c = '_';
    EXPECT_TRUE(flags.contains(name)) << option << " is called " << name;
  }
}

}  // namespace
}  // namespace train_gpt
