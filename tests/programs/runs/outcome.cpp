#include "programs/runs/outcome.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>

namespace sherd::test {

const Flags kStrategies = {"no_shard", "optim", "optim_grads", "optim_grads_params"};

std::string show(const Flags& flags) {
  std::string s;
  for (auto& f : flags) s += f + " ";
  return s;
}

bool nightly() {
  const char* set = std::getenv("SHERD_NIGHTLY");
  return set != nullptr && *set != '\0';
}

std::vector<const char*> optimizers_in_bits() {
  return nightly() ? std::vector{"adamw", "muon"} : std::vector{"muon"};
}

Outcome train_quietly(const Flags& flags, const std::string& launcher) {
  const auto data = scratch("text"), metrics = scratch("metrics"), weights = scratch("weights");
  write_file(data, golden_text());
  std::filesystem::remove(metrics);  // a resumed run would append to it
  const Finished f =
      run_train_gpt(Flags{"--data", data.string(), "--metrics", metrics.string(), "--export-weights",
                          weights.string(), "--measure-peak", "false", "--quiet"} +
                        flags,
                    launcher);
  EXPECT_EQ(f.exit_code, 0) << f.err;
  const std::string said = std::regex_replace(f.out + f.err, std::regex("sherd run: [^\n]*\n"), "");
  EXPECT_EQ(said, "") << "--quiet prints errors only";
  Outcome run;
  for (auto& s : read_steps(metrics)) {
    run.losses.push_back(s["loss"]);
    run.norms.push_back(s["grad_norm"]);
    run.zeros.push_back(s["num_zeros"]);
  }
  run.weights = read_file(weights);
  return run;
}

void expect_close_losses(const Outcome& got, const Outcome& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.losses.size(), want.losses.size()) << what;
  for (size_t i = 0; i < want.losses.size(); ++i)
    EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << what << " step " << i + 1;
}

}  // namespace sherd::test
