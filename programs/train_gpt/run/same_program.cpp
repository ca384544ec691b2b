#include "train_gpt/run/same_program.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/version.h>
#include <sherd/comm/core/require_equal.h>
#include <sherd/kernels/device/build.h>
#include <sherd/kernels/device/hardware.h>
#include <sherd/kernels/random/random.h>
#include <sherd/train/settings/config_differences.h>

namespace train_gpt {
namespace {

constexpr size_t kMostRanks = 16;  // named for each value

// The texts of a rank in words of a fixed count, whatever the version; longer ones are cut.
constexpr size_t kTextBytes = 256;
using Words = std::array<uint64_t, kTextBytes / sizeof(uint64_t)>;

Words words_of(const std::string& text) {
  Words words{};
  std::memcpy(words.data(), text.data(), std::min(text.size(), kTextBytes));
  return words;
}

// "0.2.0 on ranks 0, 1, 3; 0.9.9 on rank 2". Collective.
std::string by_value(const sherd::RankContext& rank, const std::string& own) {
  const std::vector<uint64_t> all = sherd::gather_values(*rank.world, rank.device->compute(), words_of(own));
  std::map<std::string, std::vector<std::string>> ranks;
  for (int r = 0; r < rank.world->size(); ++r) {
    std::array<char, kTextBytes> text{};
    std::memcpy(text.data(), all.data() + static_cast<size_t>(r) * Words().size(), kTextBytes);
    ranks[std::string(text.data(), ::strnlen(text.data(), kTextBytes))].push_back(std::to_string(r));
  }
  std::vector<std::string> parts;
  for (const auto& [text, of] : ranks)
    parts.push_back(
        fmt::format("{} on rank{} {}", text, of.size() > 1 ? "s" : "", sherd::shortened(of, kMostRanks)));
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace

ProgramFacts ProgramFacts::of(const sherd::RankContext& rank, const TrainConfig& config) {
  ProgramFacts facts{.version = sherd::program_version(), .build = sherd::program_build(), .hardware = {}};
  if (rank.device->kind() == sherd::DeviceKind::cuda) {
    facts.hardware = sherd::hardware_of(*rank.device).name;
  } else if (config.kernels != sherd::KernelSet::reference) {
    const sherd::ProcessorFeatures features = sherd::ProcessorFeatures::of_this_one();
    facts.hardware = features.text;
    facts.level = features.level;
  }
  return facts;
}

std::vector<std::string> compare_programs(const sherd::RankContext& rank, const ProgramFacts& own) {
  enum { version, build, hardware };
  std::vector<uint64_t> digests;
  for (const std::string* fact : {&own.version, &own.build, &own.hardware})
    digests.push_back(sherd::hash64(0, *fact));
  const auto compared = sherd::compare_values(*rank.world, rank.device->compute(), digests);
  if (!compared[version].equal())
    throw sherd::RanksDiffer(fmt::format("rank {}: the processes of the job are different versions of sherd: "
                                         "{}; ranks of one job must be one "
                                         "program: install one version on all hosts",
                                         rank.world->rank(), by_value(rank, own.version)),
                             compared[version].odd_ranks);
  std::vector<std::string> differences;
  if (!compared[build].equal())
    differences.push_back(
        fmt::format("the processes of the job are different builds of sherd, or use other libraries: {}; "
                    "results may have other bits "
                    "than with one build; start the same program with the same libraries on all hosts",
                    by_value(rank, own.build)));
  if (compared[hardware].equal()) return differences;
  const std::string each = by_value(rank, own.hardware);
  const uint64_t above = static_cast<uint64_t>(own.level + 1);
  const std::vector<uint64_t> levels = sherd::gather_values(*rank.world, rank.device->compute(), {&above, 1});
  const int lowest = static_cast<int>(*std::min_element(levels.begin(), levels.end())) - 1;
  differences.push_back(
      fmt::format("the ranks compute with different kernels: {}; results have other bits than on hosts of "
                  "one kind, and replicas may "
                  "differ; {}",
                  each,
                  lowest >= 0 ? fmt::format("start all ranks with SHERD_CPU_FEATURES={} in the environment",
                                            sherd::cpu_features_value(lowest))
                              : std::string("start all ranks on hardware of one kind")));
  return differences;
}

}  // namespace train_gpt
