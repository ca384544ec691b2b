#include "train_gpt/settings/launch_flags.h"

#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>
#include <sherd/base/program.h>
#include <sherd/comm/backend.h>
#include <sherd/comm/backend_choice.h>

#include "train_gpt/settings/settings.h"

namespace train_gpt {
namespace {

struct OptionFlag {
  std::string_view option;  // a path in LaunchOptions, a parameter of launch(), or another struct's member
  std::string flag;
};

/// Returns the library's names of the fields in settings.proto.
std::vector<OptionFlag> option_flags() {
  std::vector<OptionFlag> flags;
  for (const std::string_view name :
       settings_where([](const proto::Setting& s) { return s.has_library(); })) {
    const proto::Setting& s = setting_of(name);
    flags.push_back(
        {s.library(), sherd::flag_of(name) + (s.has_library_value() ? " " + s.library_value() : "")});
  }
  return flags;
}

constexpr std::string_view kIs = " = ";

bool part_of_a_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// The option that begins at `at` as a word of its own; null when none does. An option of one word may be any
/// word of a sentence: it is meant where a value follows.
const OptionFlag* option_at(const std::vector<OptionFlag>& flags, std::string_view text, size_t at) {
  if (at > 0 && (part_of_a_name(text[at - 1]) || text[at - 1] == '.' || text[at - 1] == ':')) return nullptr;
  for (const OptionFlag& f : flags) {
    if (!text.substr(at).starts_with(f.option)) continue;
    const std::string_view rest = text.substr(at + f.option.size());
    const bool ends = rest.empty() || (!part_of_a_name(rest[0]) &&
                                       !(rest[0] == '.' && rest.size() > 1 && part_of_a_name(rest[1])));
    const bool one_word = f.option.find_first_of(".:") == std::string_view::npos;
    if (ends && (!one_word || rest.starts_with(kIs))) return &f;
  }
  return nullptr;
}

}  // namespace

sherd::LaunchOptions launch_options(const TrainConfig& config) {
  sherd::LaunchOptions launch;
  launch.device.kind = sherd::parse_device_kind(config.device);
  launch.device.kernels = sherd::parse_cpu_kernels(config.kernels);
  launch.device.threads = static_cast<int>(config.threads);
  launch.device.memory_limit = config.memory_limit;
  launch.device.max_queued_work = config.max_queued;
  launch.device.tf32 = config.tf32;
  launch.device.symmetric_products = sherd::parse_symmetric_products(config.symmetric_products);
  launch.device.attention = sherd::parse_attention(config.attention);
  launch.job.bootstrap = sherd::parse_bootstrap(config.bootstrap);
  launch.backend = sherd::parse_backend(config.comm);
  launch.mpi.library_order = config.mpi_library_order;
  launch.nccl.exact_order = config.nccl_exact_order;
  launch.nccl.check_calls = config.nccl_check_calls;
  launch.nccl.register_buffers = config.nccl_register_buffers;
  launch.nccl.windows = config.nccl_windows;
  launch.nccl.nvls = config.nccl_nvls;
  launch.timeout = std::chrono::milliseconds(std::llround(config.comm_timeout * 1e3));
  launch.flight_recorder.folder = config.flight_recorder;
  return launch;
}

void check_launch(const TrainConfig& config, const sherd::EnvironmentLookup& get) {
  const std::vector<std::string> found =
      sherd::launch_contradictions(static_cast<int>(config.ranks), launch_options(config), get);
  if (!found.empty()) throw sherd::InvalidArgument(with_flags(fmt::format("{}", fmt::join(found, "; "))));
}

std::vector<std::string> idle_variables(const TrainConfig& config, const sherd::EnvironmentLookup& get) {
  std::vector<std::string> lines;
  if (config.comm != "mpi" && (config.comm != "nccl" || config.bootstrap != "mpi")) return lines;
  for (const char* name : {"SHERD_JOB_SECRET", "SHERD_JOB_SECRET_FILE"}) {
    const char* const value = get ? get(name) : std::getenv(name);
    if (value != nullptr && *value != '\0')
      lines.push_back(fmt::format(
          "{} is not used: rank 0 draws the job's secret and MPI distributes it; unset the variable", name));
  }
  return lines;
}

std::string with_flags(const std::string& message) {
  const std::vector<OptionFlag> flags = option_flags();
  const std::string_view text = message;
  std::string said;
  for (size_t at = 0; at < text.size();) {
    const OptionFlag* const found = option_at(flags, text, at);
    if (!found) {
      said += text[at++];
      continue;
    }
    said += found->flag;
    at += found->option.size();
    if (text.substr(at).starts_with(kIs)) {
      said += ' ';
      at += kIs.size();
    }
  }
  return said;
}

void warn(const std::string& line) { sherd::print_error("train_gpt", with_flags(line)); }

}  // namespace train_gpt
