// Operations of training, the ranks' throughput in a plain product, and their dense peak.
#include <sherd/train/report/flops.h>

#include <mutex>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include <sherd/comm/launcher.h>
#include <sherd/train/report/dense_peak.h>
#include <sherd/train/report/gemm_ceiling.h>

namespace sherd {
namespace {

TEST(TrainingFlops, AreSixForAWeightAndAttendToTheTokensBefore) {
  EXPECT_EQ(training_flops({.weights = 10, .attention_width = 0}, 100), 60);
  // One token: its score and its value, 2 products of 8 elements, thrice.
  EXPECT_EQ(training_flops({.weights = 0, .attention_width = 8}, 1), 2 * 2 * 8 * 3);
  // Three tokens see 1, 2 and 3 keys.
  EXPECT_EQ(3 * training_flops({.weights = 0, .attention_width = 8}, 3), 2 * 2 * 8 * 3 * (1 + 2 + 3));
  // A product of the order of 10^16 does not overflow.
  // With a window of two tokens three see 1 + 2 + 2 keys; a longer one is that of all tokens.
  EXPECT_EQ(3 * training_flops({.window_width = 8, .window = 2}, 3), 2 * 2 * 8 * 3 * (1 + 2 + 2));
  EXPECT_EQ(3 * training_flops({.window_width = 8, .window = 9}, 3), 2 * 2 * 8 * 3 * (1 + 2 + 3));
  EXPECT_EQ(training_flops({.weights = 2'000'000'000'000, .attention_width = 1 << 24}, 1 << 20),
            12e12 + 6.0 * ((1 << 20) + 1) * (1 << 24));
}

TEST(TrainingFlops, OfFrozenWeightsHaveNoGradientsOfTheirOwn) {
  EXPECT_EQ(training_flops({.weights = 10, .frozen = 4}, 100), 6 * 6 + 4 * 4);
  // Blocks before the first trained parameter run forward alone.
  EXPECT_EQ(training_flops({.weights = 10, .frozen = 4, .ahead = 3}, 100), 6 * 6 + 4 * 1 + 2 * 3);
  EXPECT_EQ(training_flops({.attention_width = 8, .attention_ahead = 8}, 1), 2 * 2 * 8);
  EXPECT_EQ(training_flops({.window_width = 8, .window = 2, .window_ahead = 4}, 1), 2 * 2 * (4 + 3 * 4));
}

TEST(GemmCeiling, IsOneNumberForAllRanksAndLeavesPeaksAsTheyWere) {
  for (const KernelSet kernels : {KernelSet::cpu, KernelSet::reference}) {
    std::vector<double> rates;
    std::mutex mutex;
    LaunchOptions options;
    options.device.threads = 1;
    options.device.kernels = kernels;
    options.device.memory_limit = 4 << 20;
    launch(3, options, [&](RankContext& rank) {
      const double rate = gemm_ceiling(*rank.world, *rank.device, DType::f32);
      EXPECT_LT(rank.device->allocator().peak_bytes(), 4096) << "what the product took is forgotten";
      const std::lock_guard lock(mutex);
      rates.push_back(rate);
    });
    ASSERT_EQ(rates.size(), 3u);
    EXPECT_GT(rates[0], 1e6) << name_of(kernels);
    EXPECT_EQ(rates[0], rates[1]);
    EXPECT_EQ(rates[0], rates[2]);
  }
}

TEST(DensePeak, CountsEachGpuOnceAndIsUnknownWhereOneIs) {
  using Ranks = std::vector<Hardware>;
  const char* const h100 = "NVIDIA H100 80GB HBM3";
  const auto peak = [](const Ranks& ranks, DType dtype, bool tf32 = false) {
    std::vector<std::optional<double>> found(ranks.size());
    launch(static_cast<int>(ranks.size()), {}, [&](RankContext& rank) {
      const auto r = static_cast<size_t>(rank.world->rank());
      found[r] = dense_peak(*rank.world, rank.device->compute(), ranks[r], dtype, tf32);
    });
    for (auto& other : found) EXPECT_EQ(other, found[0]);
    return found[0];
  };
  EXPECT_EQ(peak({{h100, "a"}}, DType::bf16), 989e12);
  EXPECT_EQ(peak({{h100, "a"}, {h100, "b"}, {h100, "b"}, {h100, "a"}}, DType::bf16), 2 * 989e12);
  EXPECT_EQ(peak({{h100, "a"}, {"NVIDIA A100-SXM4-40GB", "b"}}, DType::f32), (67 + 19.5) * 1e12);
  EXPECT_EQ(peak({{h100, "a"}, {h100, "b"}}, DType::f32, true), 989e12);
  EXPECT_EQ(peak({{h100, "a"}, {"NVIDIA L40S", "b"}}, DType::bf16), std::nullopt);
  EXPECT_EQ(peak({{}, {}}, DType::f32), std::nullopt) << "CPUs";
  launch(1, {}, [](RankContext& rank) { EXPECT_EQ(hardware_of(*rank.device).name, ""); });
}

}  // namespace
}  // namespace sherd
