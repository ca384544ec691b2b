#include <sherd/train/report/metrics.h>

#include <sys/resource.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>

#include <nlohmann/json.hpp>

#include <sherd/base/error.h>
#include <sherd/train/settings/fields.h>

#include "support/message_of.h"
#include "temporary_folder.h"
#include "train/report/non_finite.h"
#include "train/report/step_results.h"

namespace sherd {
namespace {

using nlohmann::json;
using test::lines_of;
using test::result_of;

TEST(Metrics, OneObjectPerLineAfterTheConfig) {
  const TemporaryFolder folder;
  const std::string path = folder.write("m.jsonl", "rest of an older run\n");
  int64_t dim = 48;
  std::string data = "folder \"x\"\n\xff";
  const std::vector<FieldGroup> fields = {
      {"Model", {{"dim", &dim, "D", "width"}, {"data", &data, "PATH", "text"}}}};
  MetricsWriter writer(path, config_text(fields));
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
  step.mtp_loss = 3.5;
  step.flops_per_s = 4e12;
  step.mfu = 0.5;
  step.product_share = 0.75;
  step.comm.clear();
  writer.write(step);
  writer.write_evaluation(7, 0.5, {{"web", 0.25}, {"code", std::numeric_limits<double>::quiet_NaN()}});

  const auto lines = lines_of(read_bytes(path));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(json::parse(lines[0])["config"]["dim"], 48);
  EXPECT_EQ(json::parse(lines[0]).size(), 1u);
  EXPECT_EQ(json::parse(lines[1]), json::parse(R"({"step": 1, "loss": 2.5, "grad_norm": 0.75, "num_zeros": 3,
      "skipped": true, "skipped_steps": 2, "lr": 0.001, "tokens_per_s": 45230.0, "step_ms": 12.5, "optim_ms": 0.5,
      "comm": {"all_gather": {"calls": 9, "bytes": 4096}, "all_reduce": {"calls": 1, "bytes": 8}},
      "peak_bytes": 1099511627776, "host_syncs": 4})"));
  EXPECT_EQ(json::parse(lines[2])["eval_loss"], 2.25);
  EXPECT_DOUBLE_EQ(json::parse(lines[2])["eval_ppl"].get<double>(), std::exp(2.25));
  EXPECT_EQ(json::parse(lines[2])["flops_per_s"], 4e12);
  EXPECT_EQ(json::parse(lines[2])["mfu"], 0.5);
  EXPECT_EQ(json::parse(lines[2])["product_share"], 0.75);
  EXPECT_EQ(json::parse(lines[2])["comm"], json::object());
  EXPECT_FALSE(json::parse(lines[2]).contains("eval_sets"));
  EXPECT_EQ(json::parse(lines[2])["mtp_loss"], 3.5);
  EXPECT_EQ(json::parse(lines[3]).size(), 4u);
  EXPECT_EQ(json::parse(lines[3])["eval_sets"], json::parse(R"({"web": 0.25, "code": null})"));
  EXPECT_EQ(json::parse(lines[3])["step"], 7);
  EXPECT_EQ(json::parse(lines[3])["eval_loss"], 0.5);
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
  EXPECT_THAT(message_of<IoError>([&] { MetricsWriter writer(folder / "no/m", "{}"); }),
              AllOf(HasSubstr(folder / "no/m"), HasSubstr("No such file")));
  EXPECT_THAT(message_of<IoError>([&] { MetricsWriter writer("/dev/full", "{}"); }),
              HasSubstr("No space left"));
}

TEST(Metrics, LinesThatCannotBeWrittenWaitForRoom) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.jsonl";
  MetricsWriter writer(path, "{}");
  StepResult step;
  step.step = 1;
  writer.write(step);
  EXPECT_EQ(writer.failure(), "");
  const std::string before = read_bytes(path);
  // No file may grow by more than a part of a line.
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{before.size() + 20, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  for (step.step = 2; step.step <= 3; ++step.step) writer.write(step);
  const std::string failure = writer.failure(), during = read_bytes(path);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(failure, AllOf(HasSubstr(path), HasSubstr("File too large"), HasSubstr("2 lines are missing")));
  EXPECT_EQ(during, before) << "no parts of lines";

  step.step = 4;
  writer.write(step);
  EXPECT_EQ(writer.failure(), "");
  std::string expected = before;
  for (step.step = 2; step.step <= 4; ++step.step) expected += format_metrics(step) + "\n";
  EXPECT_EQ(read_bytes(path), expected);
}

TEST(Metrics, AFileBelongsToOneRun) {
  const TemporaryFolder folder;
  const std::string path = folder.write("m.jsonl", "of an earlier run\n");
  {
    const MetricsWriter first(path, "{}");
    EXPECT_THAT(read_bytes(path), Not(HasSubstr("earlier")));
    const std::string before = read_bytes(path);
    EXPECT_THAT(message_of<IoError>([&] { MetricsWriter second(path, "{}"); }),
                AllOf(HasSubstr("another run"), HasSubstr(path)));
    EXPECT_EQ(read_bytes(path), before) << "it is the other run's: not emptied";
  }
  const MetricsWriter next(path, "{}");
}

// Rank 0 of a start that is suspended, or on a host that is cut off: it holds the file and may resume at any
// time.
TEST(Metrics, ALaterStartOfTheSameRunTakesTheFileAndTheEarlierOneWritesThereNoMore) {
  const auto start = [](const std::string& run, uint64_t number) {
    LockHolder holder;
    holder.run = run;
    holder.start = number;
    return holder;
  };
  const TemporaryFolder folder;
  const std::string path = folder / "m.jsonl", link = folder / "link";
  std::filesystem::create_symlink("m.jsonl", link);
  MetricsWriter first(path, "{}", false, start("run \"a\"", 1));
  first.write(result_of(1));
  for (const LockHolder& other :
       {start("", 0), start("run-b", 2), start("run \"a\"", 1), start("run \"a\"", 0)})
    EXPECT_THAT(message_of<IoError>([&] { MetricsWriter writer(path, "{}", true, other); }),
                HasSubstr("another run"));
  MetricsWriter second(link, "{}", true, start("run \"a\"", 2));
  first.write(result_of(2));
  second.write(result_of(3));
  EXPECT_THAT(message_of<IoError>([&] { MetricsWriter writer(path, "{}", true); }), HasSubstr("another run"))
      << "the file that has the name is locked";
  const auto lines = lines_of(read_bytes(path));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(json::parse(lines[0])["run"], json::parse(R"({"mark": "run \"a\"", "start": 1})"));
  EXPECT_EQ(json::parse(lines[1])["step"], 1);
  EXPECT_EQ(json::parse(lines[2])["run"]["start"], 2);
  EXPECT_EQ(json::parse(lines[3])["step"], 3);
  MetricsWriter third(path, "{}", false, start("run \"a\"", 3));
  second.write(result_of(4));
  EXPECT_EQ(lines_of(read_bytes(path)).size(), 1u) << "a run that begins anew empties it";
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2)
      << "nothing else is left there";
}

}  // namespace
}  // namespace sherd
