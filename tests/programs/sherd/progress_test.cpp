#include "progress.h"
#include "support/message_of.h"

#include <sstream>

namespace sherd::tools {
namespace {

using std::chrono::milliseconds;
using ::testing::EndsWith;

class ProgressOutput : public ::testing::Test {
 protected:
  /// Calls at() once every `step`, a hundredth of the work each time.
  std::string run(Progress::Mode mode, milliseconds step) {
    std::ostringstream out;
    Progress::Clock::time_point now{};
    {
      Progress progress(out, mode, "verify x", int64_t{100} << 20, [&] { return now; });
      for (int i = 1; i <= 100; ++i) {
        now += step;
        progress.at(int64_t{i} << 20);
      }
    }
    return out.str();
  }
  static auto lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }
};

TEST_F(ProgressOutput, LinesAreFewAndPlain) {
  const std::string text = run(Progress::Mode::lines, milliseconds(200));
  EXPECT_THAT(text, HasSubstr("verify x  10.0 MiB of 100.0 MiB  10 %  5120.0 KiB/s  left 0:18\n"));
  EXPECT_EQ(lines(text), 10);
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  EXPECT_EQ(lines(run(Progress::Mode::lines, milliseconds(2500))), 50);  // slow: every 5 s
  EXPECT_EQ(run(Progress::Mode::lines, milliseconds(5)), "");            // over before anyone wonders
}

TEST_F(ProgressOutput, TheBarIsClearedAtTheEnd) {
  const std::string text = run(Progress::Mode::bar, milliseconds(200));
  EXPECT_THAT(text, HasSubstr("\rverify x  50.0 MiB"));
  EXPECT_THAT(text, EndsWith("\r\x1b[K"));
  EXPECT_EQ(lines(text), 0);
}

TEST_F(ProgressOutput, OffIsSilent) { EXPECT_EQ(run(Progress::Mode::off, milliseconds(5000)), ""); }

TEST_F(ProgressOutput, NothingToDo) {
  std::ostringstream out;
  Progress(out, Progress::Mode::bar, "x", 0).at(0);
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace sherd::tools
