#include <sherd/train/report/report.h>

#include <sherd/kernels/ops.h>

#include "support/comma_locale.h"
#include "support/message_of.h"
#include "train/report/non_finite.h"

namespace sherd {
namespace {

TEST(Summary, ShowsMemoryOfEveryRankBesideReplication) {
  const int64_t mib = 1 << 20;
  Summary s;
  s.first_loss = 5.5;
  s.last_loss = 1.25;
  s.eval_loss = 1.5;
  s.loss_unit = "nats per byte";
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

TEST(Summary, EvaluationsAndWaitsForCheckpointsHaveTimesOfTheirOwn) {
  Summary s;
  s.steps = 300;
  s.seconds = 83.4;
  s.tokens_per_s = 98'321;
  s.evaluation_seconds = 9;
  EXPECT_THAT(format_summary(s),
              HasSubstr("trained 300 steps in 1:23, 98.3k tokens/s; evaluations took 0:09\n"));
  s.saving_seconds = 125;
  EXPECT_THAT(format_summary(s), HasSubstr("; evaluations took 0:09; waits for checkpoints 2:05\n"));
}

TEST(Summary, ReportsTheUseOfTheProcessSinceItsStart) {
  const int64_t mib = 1 << 20;
  Summary s;
  s.ranks = {{mib, 0, 0, 0}};
  s.process = MemoryGrowth{
      .resident = 90 * mib, .at_start = 10 * mib, .ranks = 60 * mib, .heap = 12 * mib, .files = 4 * mib};
  EXPECT_THAT(format_summary(s),
              HasSubstr("process: 90.0 MiB resident, 10.0 at start; of the 80.0 between, ranks hold 60.0, "
                        "malloc 12.0, programs' files 4.0, together 95 %\n"));
}

TEST(Summary, TheProcessKnowsItsMemory) {
  const auto device = make_cpu_device();
  // Threads, their stacks and the pages of the code are there before the measurement.
  ops::fill(device->compute(), Tensor::empty(*device, {1 << 20}, DType::u8, "first"), 1);
  device->compute().synchronize();
  const ProcessMemory before = ProcessMemory::now();
  EXPECT_GT(before.resident, before.files);
  EXPECT_GT(before.files, 0);
  const int64_t held = held_by(*device);
  const auto t = Tensor::empty(*device, {32 << 20}, DType::u8, "test");
  ops::fill(device->compute(), t, 1);
  device->compute().synchronize();
  EXPECT_EQ(held_by(*device) - held, 32 << 20);
  EXPECT_NEAR(static_cast<double>(ProcessMemory::now().resident - before.resident), 32 << 20, 3 << 20);
}

TEST(Summary, ADecimalCommaChangesNothing) {
  const Summary s{
      .first_loss = 5.5, .last_loss = 1.25, .steps = 1234567, .seconds = 83.4, .tokens_per_s = 98'321};
  const std::string text = format_summary(s);
  const ProcessMemory memory = ProcessMemory::now();
  const test::CommaLocale locale;
  EXPECT_EQ(format_summary(s), text);
  EXPECT_NEAR(static_cast<double>(ProcessMemory::now().resident), static_cast<double>(memory.resident),
              4 << 20);
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

}  // namespace
}  // namespace sherd
