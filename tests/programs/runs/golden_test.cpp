// train_gpt against plain PyTorch: the figures committed in tests/golden/ (its README says how they were
// made).
#include <gtest/gtest.h>

#include <cmath>

#include <sherd/checkpoint/safetensors/safetensors.h>

#include "programs/runs/program.h"

namespace sherd::test {
namespace {

uint64_t fnv1a64(const std::string& bytes) {
  uint64_t h = 0xcbf29ce484222325u;
  for (unsigned char c : bytes) h = (h ^ c) * 0x100000001b3u;
  return h;
}

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    golden_ = nlohmann::json::parse(read_file(std::string(GOLDEN_FOLDER) + "/" + GetParam() + ".json"));
    data_ = scratch("golden.txt");
    const std::string text = golden_text();
    char hash[17];
    std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(fnv1a64(text)));
    ASSERT_EQ(hash, golden_["data"]["fnv1a64"].get<std::string>())
        << "this test's text is not the golden run's";
    write_file(data_, text);
    for (auto& [flag, value] : golden_["config"].items()) {
      flags_.push_back("--" + flag);
      flags_.push_back(value.is_string() ? value.get<std::string>() : value.dump());
    }
    for (const char* f : {"--data", data_.c_str(), "--quiet"}) flags_.push_back(f);
  }
  nlohmann::json golden_;
  std::filesystem::path data_;
  std::vector<std::string> flags_;
};

TEST_P(Golden, InitialWeightsAreTheOnesTrainedThere) {
  const auto file = scratch("initial.safetensors");
  auto flags = flags_;
  for (const char* f : {"--steps", "0", "--export-weights", file.c_str()}) flags.push_back(f);
  const Finished f = run_train_gpt(flags);
  ASSERT_EQ(f.exit_code, 0) << f.err;
  const SafetensorsReader reader(file);
  ASSERT_EQ(reader.entries().size(), golden_["weights"].size());
  for (auto& [name, want] : golden_["weights"].items()) {
    const SafetensorsEntry* e = reader.find(name);
    ASSERT_NE(e, nullptr) << name;
    ASSERT_EQ(e->shape, want["shape"].get<Shape>()) << name;
    std::vector<float> values(static_cast<size_t>(numel_of(e->shape)));
    reader.read(*e, 0, static_cast<int64_t>(values.size()), values.data());
    double square = 0;
    for (float v : values) square += static_cast<double>(v) * v;
    // Another libm may change a last bit, no more.
    EXPECT_NEAR(std::sqrt(square), want["l2"].get<double>(), 1e-5 * want["l2"].get<double>())
        << name << ": initialisation changed; regenerate tests/golden";
    for (size_t i = 0; i < want["first"].size(); ++i)
      EXPECT_NEAR(values[i], want["first"][i].get<double>(), 1e-5 * std::abs(want["first"][i].get<double>()))
          << name;
  }
}

TEST_P(Golden, LossesAgreeWithPyTorch) {
  for (const char* ranks : {"1", "3"}) {
    const auto metrics = scratch("golden.jsonl");
    auto flags = flags_;
    for (const char* f : {"--ranks", ranks, "--metrics", metrics.c_str(), "--eval-every", "10"})
      flags.push_back(f);
    const Finished f = run_train_gpt(flags);
    ASSERT_EQ(f.exit_code, 0) << f.err;
    const auto steps = read_steps(metrics);
    ASSERT_EQ(steps.size(), golden_["steps"].size());
    for (size_t i = 0; i < steps.size(); ++i) {
      const auto& want = golden_["steps"][i];
      const double loss = want["loss"], norm = want["grad_norm"];
      EXPECT_NEAR(steps[i]["loss"].get<double>(), loss, 1e-4 * loss)
          << "ranks " << ranks << " step " << i + 1;
      EXPECT_NEAR(steps[i]["grad_norm"].get<double>(), norm, 1e-4 * norm)
          << "ranks " << ranks << " step " << i + 1;
      EXPECT_EQ(steps[i]["num_zeros"], want["num_zeros"]) << "ranks " << ranks << " step " << i + 1;
    }
    const double eval = golden_["eval_loss"];
    EXPECT_NEAR(steps.back()["eval_loss"].get<double>(), eval, 1e-4 * eval) << "ranks " << ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Golden, ::testing::Values("adamw", "muon"),
                         [](const auto& variant) { return std::string(variant.param); });

}  // namespace
}  // namespace sherd::test
