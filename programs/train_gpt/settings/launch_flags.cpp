#include "train_gpt/settings/launch_flags.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>
#include <sherd/base/program.h>
#include <sherd/comm/backend.h>
#include <sherd/comm/backend_choice.h>

#include "train_gpt/settings/optimizer_config.h"
#include "train_gpt/settings/settings.h"

namespace train_gpt {

sherd::LaunchOptions launch_options(const TrainConfig& config) {
  sherd::LaunchOptions launch;
  launch.device.kind = config.device;
  launch.device.kernels = config.kernels;
  launch.device.threads = static_cast<int>(config.threads);
  launch.device.memory_limit = config.memory_limit;
  launch.device.offload_folder = config.offload_folder;
  launch.device.max_queued_work = config.max_queued;
  launch.device.tf32 = config.tf32;
  launch.device.symmetric_products = config.symmetric_products;
  launch.device.attention = config.attention;
  launch.job.bootstrap = config.bootstrap;
  launch.backend = config.comm.value();
  launch.mpi.library_order = config.mpi_library_order;
  launch.nccl.exact_order = config.nccl_exact_order;
  launch.nccl.check_calls = config.nccl_check_calls;
  launch.nccl.register_buffers = config.nccl_register_buffers;
  launch.nccl.windows = config.nccl_windows;
  launch.nccl.nvls = config.nccl_nvls;
  launch.nccl.max_ctas = static_cast<int>(config.nccl_max_ctas);
  launch.nccl.threads = config.nccl_threads;
  launch.timeout = std::chrono::milliseconds(std::llround(config.comm_timeout * 1e3));
  launch.flight_recorder.folder = config.flight_recorder;
  return launch;
}

void check_launch(const TrainConfig& config, const sherd::EnvironmentLookup& get) {
  std::vector<std::string> found =
      sherd::launch_contradictions(static_cast<int>(config.ranks), launch_options(config), get);
  if (offloads(config) && config.device == sherd::DeviceKind::cpu && config.offload_folder.empty())
    found.push_back(fmt::format(
        "{}: on a CPU what is offloaded is a file; give --offload-folder{}",
        config.offload != "none"                 ? "--offload " + config.offload
        : config.recompute == Recompute::offload ? "--recompute offload"
                                                 : "--route",
        config.recompute == Recompute::offload ? ", or --recompute blocks, which has the same bits" : ""));
  if (!found.empty()) throw sherd::InvalidArgument(with_flags(fmt::format("{}", fmt::join(found, "; "))));
}

std::vector<std::string> idle_variables(const TrainConfig& config, const sherd::EnvironmentLookup& get) {
  std::vector<std::string> lines;
  if (config.comm != sherd::BackendKind::mpi &&
      (config.comm != sherd::BackendKind::nccl || config.bootstrap != sherd::Bootstrap::mpi))
    return lines;
  for (const char* name : {"SHERD_JOB_SECRET", "SHERD_JOB_SECRET_FILE"}) {
    const char* const value = get ? get(name) : std::getenv(name);
    if (value != nullptr && *value != '\0')
      lines.push_back(fmt::format(
          "{} is not used: rank 0 draws the job's secret and MPI distributes it; unset the variable", name));
  }
  return lines;
}

// An option of one word may be any word of a sentence: it is meant where a value follows.
std::string with_flags(const std::string& message) {
  std::string said = message;
  for (const std::string_view name :
       settings_where([](const proto::Setting& s) { return s.has_library(); })) {
    const proto::Setting& s = setting_of(name);
    const std::string flag = sherd::flag_of(name) + (s.has_library_value() ? " " + s.library_value() : "");
    const std::string option = R"((^|[^\w.:]))" + std::regex_replace(s.library(), std::regex("[.]"), "[.]");
    said = std::regex_replace(said, std::regex(option + " = "), "$1" + flag + " ");
    if (s.library().find_first_of(".:") != std::string::npos)
      said = std::regex_replace(said, std::regex(option + R"((?!\w|\.\w))"), "$1" + flag);
  }
  return said;
}

void warn(const std::string& line) { sherd::print_error("train_gpt", with_flags(line)); }

}  // namespace train_gpt
