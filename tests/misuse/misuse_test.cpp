// Random programs that use sherd wrongly. Each ends in an error that names the place, or with a right result;
// never in silence, with a crash, or not at all.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>

#include <fmt/format.h>

#include "misuse/case.h"

namespace sherd::misuse {
namespace {

/// Returns the seed of all cases; SHERD_MISUSE_SEED sets another.
uint64_t seed_of_all() {
  const char* asked = std::getenv("SHERD_MISUSE_SEED");
  return asked ? std::strtoull(asked, nullptr, 10) : 20'000;
}
// Enough for sanitizers on a busy machine; a case that works ends within its watchdog.
constexpr double kSeconds = 60;

std::map<Ending, int>& totals() {
  static std::map<Ending, int> all;
  return all;
}

class PrintedAtTheEnd : public ::testing::Environment {
 public:
  void TearDown() override {
    int cases = 0;
    for (auto& [ending, n] : totals()) cases += n;
    const auto of = [](Ending e) { return totals()[e]; };
    std::cout << fmt::format(
        "misuse: {} cases from seed {}: {} named errors, {} right results, {} hangs, {} crashes, {} silent, "
        "{} "
        "unnamed errors\n",
        cases, seed_of_all(), of(Ending::named_error), of(Ending::right_result), of(Ending::hang),
        of(Ending::crash), of(Ending::silent), of(Ending::unnamed_error));
  }
};
[[maybe_unused]] const auto* const kPrints = ::testing::AddGlobalTestEnvironment(new PrintedAtTheEnd);

void end_well(const char* family, std::vector<Case> (*make)(uint64_t, int), uint64_t seed, int count) {
  const bool shows_all = std::getenv("SHERD_MISUSE_VERBOSE") != nullptr;
  const std::vector<Case> cases = make(seed, count);
  const std::vector<Ended> ended = run_all(cases, kSeconds);
  for (size_t i = 0; i < cases.size(); ++i) {
    const Ended& e = ended[i];
    ++totals()[e.ending];
    const std::string text = fmt::format("{} {}: {} ({:.2f} s): {}\n    {}", family, i, name_of(e.ending),
                                         e.seconds, cases[i].name, e.words);
    if (e.ending != Ending::named_error && e.ending != Ending::right_result) ADD_FAILURE() << text;
    if (shows_all) std::cout << text << "\n";
  }
}

TEST(Misuse, OfMeshes) { end_well("mesh", mesh_cases, seed_of_all(), 45); }
TEST(Misuse, OfOptions) { end_well("option", option_cases, seed_of_all() + 1000, 60); }
TEST(Misuse, OfOrders) { end_well("order", order_cases, seed_of_all() + 2000, 60); }
TEST(Misuse, OfCollectives) { end_well("collective", collective_cases, seed_of_all() + 3000, 60); }
TEST(Misuse, OfNumbers) { end_well("number", number_cases, seed_of_all() + 4000, 30); }
TEST(Misuse, OfEndings) { end_well("ending", ending_cases, seed_of_all() + 5000, 60); }

}  // namespace
}  // namespace sherd::misuse
