#include <sherd/train/report/step_progress.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "support/message_of.h"
#include "train/report/step_results.h"

namespace sherd {
namespace {

using test::lines_of;
using test::result_of;

std::string run(StepProgress::Mode mode, int64_t steps, const std::set<int64_t>& evaluated = {},
                int columns = 100) {
  std::ostringstream out;
  {
    StepProgress progress(out, mode, steps, [columns] { return columns; });
    for (int64_t step = 1; step <= steps; ++step) {
      StepResult r = result_of(step);
      if (evaluated.contains(step)) r.eval_loss = 2.75;
      progress.step(r);
    }
  }
  return out.str();
}

TEST(Progress, PipeGetsFewPlainLines) {
  const auto lines = lines_of(run(StepProgress::Mode::lines, 1000, {123, 777}));
  EXPECT_EQ(lines.size(), 1 + 20 + 2u);
  EXPECT_THAT(lines.front(),
              AllOf(HasSubstr("step    1/1000"), HasSubstr("loss 2.5000"), HasSubstr("45.2k tokens/s")));
  EXPECT_THAT(lines.back(), AllOf(HasSubstr("step 1000/1000"), HasSubstr("took 0:00")));
  size_t evaluated = 0;
  for (const auto& line : lines) {
    evaluated += line.find("held-out 2.7500") != line.npos;
    EXPECT_THAT(line, AllOf(Not(HasSubstr("\r")), Not(HasSubstr("\x1b"))));
  }
  EXPECT_EQ(evaluated, 2u);
}

TEST(Progress, ShortRunsShowEveryStep) {
  EXPECT_EQ(lines_of(run(StepProgress::Mode::lines, 1)).size(), 1u);
  EXPECT_EQ(lines_of(run(StepProgress::Mode::lines, 7)).size(), 7u);
  EXPECT_EQ(lines_of(run(StepProgress::Mode::lines, 21)).size(), 21u);
}

TEST(Progress, TerminalGetsOneLineRedrawn) {
  const std::string text = run(StepProgress::Mode::bar, 50, {10});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(text.front(), '\r');
  const std::string last = text.substr(text.rfind('\r') + 1);
  EXPECT_THAT(last, AllOf(HasSubstr("step 50/50"), HasSubstr("held-out 2.7500"), HasSubstr("==]")));
}

TEST(Progress, BarFitsTheTerminal) {
  for (int columns : {1, 10, 40, 60, 80, 100, 200}) {
    std::string text = run(StepProgress::Mode::bar, 50, {10, 20}, columns);
    text = text.substr(text.rfind('\r') + 1);
    EXPECT_LT(text.find("\x1b[K"), static_cast<size_t>(columns)) << text;
  }
}

TEST(Progress, BarFitsATerminalThatBecomesNarrower) {
  std::ostringstream out;
  int columns = 120;
  StepProgress progress(out, StepProgress::Mode::bar, 2, [&] { return columns; });
  progress.step(result_of(1));
  columns = 30;
  progress.step(result_of(2));
  const std::string text = out.str();
  EXPECT_LT(text.size() - text.rfind('\r') - std::string("\r\x1b[K").size(), 30u) << text;
}

TEST(Progress, QuietPrintsNothing) { EXPECT_EQ(run(StepProgress::Mode::off, 100, {1, 50, 100}), ""); }

TEST(Progress, InterruptedBarEndsItsLine) {
  std::ostringstream out;
  {
    StepProgress progress(out, StepProgress::Mode::bar, 50, [] { return 80; });
    progress.step(result_of(1));
  }
  EXPECT_EQ(out.str().back(), '\n');
}

}  // namespace
}  // namespace sherd
