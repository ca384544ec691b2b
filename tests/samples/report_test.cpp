#include "report.h"

#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sherd/kernels/device/error.h>
#include <sherd/kernels/ops/ops.h>

#include "loss_svg.h"
#include "metrics.h"
#include "progress.h"
#include "temporary_folder.h"

namespace train_gpt {
namespace {

using nlohmann::json;
using sherd::IoError;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

StepResult result_of(int64_t step) {
  StepResult r;
  r.step = step;
  r.loss = 2.5;
  r.tokens_per_s = 45'230;
  return r;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// ---- metrics
// --------------------------------------------------------------------------------------------------------

TEST(Metrics, OneObjectPerLineAfterTheConfig) {
  const TemporaryFolder folder;
  const std::string path = folder.write("m.jsonl", "rest of an older run\n");
  TrainConfig config;
  config.dim = 48;
  config.data = "folder \"x\"\n\xff";
  MetricsWriter writer(path, config);
  StepResult step = result_of(1);
  step.num_zeros = 3;
  step.grad_norm = 0.75f;
  step.skipped = true;
  step.skipped_steps = 2;
  step.lr = 1e-3;
  step.step_ms = 12.5;
  step.optim_ms = 0.5;
  step.comm["all_gather"] = {9, 4096};
  step.comm["all_reduce"] = {1, 8};
  step.peak_bytes = int64_t{1} << 40;
  step.host_syncs = 4;
  writer.write(step);
  EXPECT_EQ(lines_of(read_bytes(path)).size(), 2u) << "every line is there at once";
  step.step = 2;
  step.eval_loss = 2.25;
  step.comm.clear();
  writer.write(step);

  const auto lines = lines_of(read_bytes(path));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(json::parse(lines[0])["config"]["dim"], 48);
  EXPECT_EQ(json::parse(lines[0]).size(), 1u);
  EXPECT_EQ(json::parse(lines[1]), json::parse(R"({"step": 1, "loss": 2.5, "grad_norm": 0.75, "num_zeros": 3,
      "skipped": true, "skipped_steps": 2, "lr": 0.001, "tokens_per_s": 45230.0, "step_ms": 12.5, "optim_ms": 0.5,
      "comm": {"all_gather": {"calls": 9, "bytes": 4096}, "all_reduce": {"calls": 1, "bytes": 8}},
      "peak_bytes": 1099511627776, "host_syncs": 4})"));
  EXPECT_EQ(json::parse(lines[2])["eval_loss"], 2.25);
  EXPECT_EQ(json::parse(lines[2])["comm"], json::object());
}

TEST(Metrics, SeventeenDigitsRestoreEveryBit) {
  for (double loss :
       {0.1, 1.0 / 3.0, 5.5451774444795623, 5.0, 1e-300, 4.9e-324, 1.7976931348623157e308, -0.0}) {
    StepResult step = result_of(1);
    step.loss = loss;
    step.eval_loss = std::nextafter(loss, 10.0);
    const json line = json::parse(format_metrics(step));
    EXPECT_EQ(std::bit_cast<uint64_t>(line["loss"].get<double>()), std::bit_cast<uint64_t>(loss));
    EXPECT_EQ(line["eval_loss"].get<double>(), *step.eval_loss);
  }
  StepResult step = result_of(1);
  step.loss = 0.1;
  EXPECT_THAT(format_metrics(step), HasSubstr("\"loss\": 0.10000000000000001,"));
  step.loss = 5;
  EXPECT_THAT(format_metrics(step), HasSubstr("\"loss\": 5.0000000000000000,"));
}

TEST(Metrics, NotFiniteBecomesNull) {
  StepResult step = result_of(1);
  step.loss = kNan;
  step.eval_loss = kInfinity;
  step.grad_norm = -std::numeric_limits<float>::infinity();
  const json line = json::parse(format_metrics(step));
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_TRUE(line["eval_loss"].is_null());
  EXPECT_TRUE(line["grad_norm"].is_null());
}

TEST(Metrics, UnwritableFilesAreIoErrors) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<IoError>([&] { MetricsWriter writer(folder / "no/m", {}); }),
              AllOf(HasSubstr(folder / "no/m"), HasSubstr("No such file")));
  EXPECT_THAT(message_of<IoError>([&] { MetricsWriter writer("/dev/full", {}); }),
              HasSubstr("No space left"));
}

// ---- progress
// -------------------------------------------------------------------------------------------------------

std::string run(Progress::Mode mode, int64_t steps, const std::set<int64_t>& evaluated = {},
                int columns = 100) {
  std::ostringstream out;
  {
    Progress progress(out, mode, steps, columns);
    for (int64_t step = 1; step <= steps; ++step) {
      StepResult r = result_of(step);
      if (evaluated.contains(step)) r.eval_loss = 2.75;
      progress.step(r);
    }
  }
  return out.str();
}

TEST(Progress, PipeGetsFewPlainLines) {
  const auto lines = lines_of(run(Progress::Mode::lines, 1000, {123, 777}));
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
  EXPECT_EQ(lines_of(run(Progress::Mode::lines, 1)).size(), 1u);
  EXPECT_EQ(lines_of(run(Progress::Mode::lines, 7)).size(), 7u);
  EXPECT_EQ(lines_of(run(Progress::Mode::lines, 21)).size(), 21u);
}

TEST(Progress, TerminalGetsOneLineRedrawn) {
  const std::string text = run(Progress::Mode::bar, 50, {10});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(text.front(), '\r');
  const std::string last = text.substr(text.rfind('\r') + 1);
  EXPECT_THAT(last, AllOf(HasSubstr("step 50/50"), HasSubstr("held-out 2.7500"), HasSubstr("==]")));
}

TEST(Progress, BarFitsTheTerminal) {
  for (int columns : {1, 10, 40, 60, 80, 100, 200}) {
    std::string text = run(Progress::Mode::bar, 50, {10, 20}, columns);
    text = text.substr(text.rfind('\r') + 1);
    EXPECT_LT(text.find("\x1b[K"), static_cast<size_t>(columns)) << text;
  }
}

TEST(Progress, QuietPrintsNothing) { EXPECT_EQ(run(Progress::Mode::off, 100, {1, 50, 100}), ""); }

TEST(Progress, InterruptedBarEndsItsLine) {
  std::ostringstream out;
  {
    Progress progress(out, Progress::Mode::bar, 50, 80);
    progress.step(result_of(1));
  }
  EXPECT_EQ(out.str().back(), '\n');
}

// ---- summary
// --------------------------------------------------------------------------------------------------------

TEST(Summary, ShowsMemoryOfEveryRankBesideReplication) {
  const int64_t mib = 1 << 20;
  Summary s;
  s.first_loss = 5.5;
  s.last_loss = 1.25;
  s.eval_loss = 1.5;
  s.steps = 300;
  s.seconds = 83.4;
  s.tokens_per_s = 98'321;
  s.ranks = {{mib, mib, 2 * mib, 20 * mib}, {mib + mib / 2, mib, 2 * mib, 19 * mib}};
  s.replicated = {3 * mib, 3 * mib, 6 * mib, 0};
  EXPECT_EQ(format_summary(s),
            "trained 300 steps in 1:23, 98.3k tokens/s\n"
            "loss 5.5000 -> 1.2500 nats per byte\n"
            "held-out loss 1.5000 nats per byte\n"
            "\n"
            "memory per rank, peak, in MiB\n"
            "                     parameters   gradients   optimizer         sum       other\n"
            "  rank 0                   1.00        1.00        2.00        4.00       20.00\n"
            "  rank 1                   1.50        1.00        2.00        4.50       19.00\n"
            "  if replicated            3.00        3.00        6.00       12.00\n"
            "  largest rank           50.0 %      33.3 %      33.3 %      37.5 %\n");
}

TEST(Summary, TellsWhatTheProcessHasTakenSinceItsStart) {
  const int64_t mib = 1 << 20;
  Summary s;
  s.ranks = {{mib, 0, 0, 0}};
  s.process = MemoryGrowth{.resident = 90 * mib, .at_start = 10 * mib, .ranks = 60 * mib, .heap = 12 * mib,
                           .files = 4 * mib};
  EXPECT_THAT(format_summary(s),
              HasSubstr("process: 90.0 MiB resident, 10.0 at start; of the 80.0 between, ranks hold 60.0, "
                        "malloc 12.0, programs' files 4.0, together 95 %\n"));
}

TEST(Summary, TheProcessKnowsItsMemory) {
  const ProcessMemory before = ProcessMemory::now();
  EXPECT_GT(before.resident, before.files);
  EXPECT_GT(before.files, 0);
  const auto device = sherd::make_cpu_device();
  const int64_t held = held_by(*device);
  const auto t = sherd::Tensor::empty(*device, {32 << 20}, sherd::DType::u8, "test");
  sherd::ops::fill(device->compute(), t, 1);
  device->compute().synchronize();
  EXPECT_EQ(held_by(*device) - held, 32 << 20);
  EXPECT_NEAR(static_cast<double>(ProcessMemory::now().resident - before.resident), 32 << 20, 3 << 20);
}

TEST(Summary, MoreThanReplicatedComesWithAReason) {
  Summary s;
  s.replicated = {8, 8, 16, 0};
  s.ranks = {{12, 8, 8, 0}};
  EXPECT_THAT(format_summary(s),
              AllOf(HasSubstr("150.0 %"), HasSubstr("above 100 %: a rank has its own share")));
  s.ranks = {{8, 8, 8, 0}};
  EXPECT_THAT(format_summary(s), Not(HasSubstr("above 100 %")));
}

TEST(Summary, WithoutTrainingThereIsOnlyMemory) {
  Summary s;
  s.ranks = {{1 << 20, 0, 0, 0}};
  s.replicated = {1 << 20, 0, 0, 0};
  EXPECT_THAT(format_summary(s),
              AllOf(Not(HasSubstr("trained")), HasSubstr("100.0 %           -           -")));
}

TEST(Summary, SampleCannotDriveTheTerminal) {
  EXPECT_EQ(format_sample(std::string("int x;\n\tnext \x1b[2J\xc3\xa4\r\0", 20)),
            "generated text\n  | int x;\n  | \tnext \\x1b[2J\\xc3\\xa4\\x0d\n");
}

TEST(Summary, ShortNumbers) {
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(45'230), "45.2k");
  EXPECT_EQ(format_count(1'234'567), "1.23M");
  EXPECT_EQ(format_duration(0.4), "0:00");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(754), "12:34");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(kNan), "0:00");
}

// ---- picture
// --------------------------------------------------------------------------------------------------------

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(LossSvg, HasAxesAndBothCurves) {
  const std::string svg = draw_losses({4.0, 3.0, 2.5, 2.25, 2.0}, {{2, 3.5}, {5, 2.5}});
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_EQ(count_of(svg, "<polyline"), 2u);
  EXPECT_EQ(count_of(svg, "<circle"), 2u);
  EXPECT_THAT(svg, AllOf(HasSubstr(">training<"), HasSubstr(">held out<"), HasSubstr(">step<"),
                         HasSubstr("nats per byte")));
  // 4.0 is the top of the axis and 2.0 its bottom, 5 steps reach the right edge.
  EXPECT_THAT(svg, AllOf(HasSubstr("212.0,40.0 "), HasSubstr("780.0,425.0 ")));
  EXPECT_EQ(count_of(draw_losses({4.0, 3.0}, {}), "<polyline"), 1u);
}

TEST(LossSvg, SurvivesAnything) {
  for (const std::vector<double>& losses : {std::vector<double>{},
                                            {2.0},
                                            {2.0, 2.0},
                                            {kNan, kInfinity},
                                            {kNan, 2.0, kInfinity, 1.0},
                                            {0.0, 0.0},
                                            {-1.0, 1e9}}) {
    const std::string svg = draw_losses(losses, {{1, kNan}});
    EXPECT_THAT(svg, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf")))) << svg;
  }
}

TEST(LossSvg, LongRunsAreThinned) {
  const std::string svg = draw_losses(std::vector<double>(123'456, 1.5), {});
  EXPECT_LT(svg.size(), 20'000u);
}

TEST(LossSvg, WritesAFileOrThrows) {
  const TemporaryFolder folder;
  write_loss_svg(folder / "l.svg", {1.0, 2.0}, {});
  EXPECT_EQ(read_bytes(folder / "l.svg"), draw_losses({1.0, 2.0}, {}));
  EXPECT_THAT(message_of<IoError>([&] { write_loss_svg(folder / "no/l.svg", {}, {}); }),
              HasSubstr(folder / "no/l.svg"));
  EXPECT_THROW(write_loss_svg("/dev/full", {1.0}, {}), IoError);
}

}  // namespace
}  // namespace train_gpt
