#include <sherd/train/report/timeline.h>

#include <nlohmann/json.hpp>

#include <map>
#include <regex>
#include <set>

#include <sherd/train/report/trace_output.h>

#include "support/message_of.h"
#include "train/report/xml_check.h"

namespace sherd {
namespace {

using nlohmann::json;
using test::xml_problem;

Timeline two_ranks() {
  Timeline t;
  t.title = "two ranks, a < b & c";
  t.marks = {{"step 3", 1000}};
  t.records = {{"rank 0", "gather", "all_gather", 1000, 1500, WorkKind::gather},
               {"rank 0", "compute", "gemm", 1200, 1400},
               {"rank 0", "compute", "gemm", 1400, 1900},
               {"rank 0", "compute", "adamw", 1950, 2000, WorkKind::optimizer},
               {"rank 1", "compute", "gemm", 1100, 1200},
               {"rank 1", "reduce", "reduce_scatter", 1600, 1900, WorkKind::reduce}};
  return t;
}

TEST(XmlCheck, FindsWhatIsWrong) {
  EXPECT_EQ(xml_problem("<a b=\"1\"><c/>x &amp; y</a>\n"), "");
  for (const char* wrong : {"", "<a>", "<a></b>", "<a/><b/>", "<a b=1/>", "<a b=\"1\" b=\"2\"/>",
                            "<a>x & y</a>", "<a b=\"<\"/>", "<a>1 < 2</a>", "x<a/>", "<a b=\"1/>"})
    EXPECT_NE(xml_problem(wrong), "") << wrong;
}

TEST(Timeline, LanesAreGroupedByRankAndTheComputingStreamIsFirst) {
  const auto lanes = lanes_of(two_ranks());
  ASSERT_EQ(lanes.size(), 4u);
  EXPECT_EQ(lanes[0].rank + "/" + lanes[0].stream, "rank 0/compute");
  EXPECT_EQ(lanes[1].rank + "/" + lanes[1].stream, "rank 0/gather");
  EXPECT_EQ(lanes[2].rank + "/" + lanes[2].stream, "rank 1/compute");
  EXPECT_EQ(lanes[3].rank + "/" + lanes[3].stream, "rank 1/reduce");
}

TEST(Timeline, OverlapCountsTimeNotRecords) {
  // rank 0: 1000-1500 in a collective, of it 1200-1500 beside compute; rank 1: 1600-1900, nothing.
  const Overlap o = overlap_of(two_ranks());
  EXPECT_NEAR(o.collectives, 0.8, 1e-9);
  EXPECT_NEAR(o.hidden, 0.3, 1e-9);
  EXPECT_EQ(overlap_of({}).collectives, 0);
}

TEST(Timeline, PartsOfAStepSumToIt) {
  Timeline t;
  t.marks = {{"step 1", 1000}, {"step 2", 3000}};
  for (const char* rank : {"rank 0", "rank 1"}) {
    t.records.push_back({rank, "compute", "gemm_bias", 1000, 2000, WorkKind::product});
    t.records.push_back({rank, "compute", "attention_forward", 2000, 2500, WorkKind::attention});
    t.records.push_back({rank, "gather", "all_gather", 1000, 4000, WorkKind::gather});
    t.records.push_back({rank, "compute", "rms_norm_forward", 3000, 4000});
    t.records.push_back({rank, "compute", "adamw", 4500, 5000, WorkKind::optimizer});
  }
  double sum = 0;
  std::map<std::string, double> ms;
  for (const StepPart& p : parts_of(t)) {
    ms[p.name] = p.ms;
    sum += p.ms;
  }
  EXPECT_DOUBLE_EQ(sum, 2);
  EXPECT_DOUBLE_EQ(ms["products"], 0.5);
  EXPECT_DOUBLE_EQ(ms["attention"], 0.25);
  EXPECT_DOUBLE_EQ(ms["other kernels"], 0.5);
  EXPECT_DOUBLE_EQ(ms["optimizer"], 0.25);
  EXPECT_DOUBLE_EQ(ms["waiting"], 0.5);
  EXPECT_EQ(format_parts(parts_of(t)).front(), "a step of 2.0 ms, by the compute streams' time:");
  EXPECT_TRUE(parts_of({}).empty());
}

TEST(Timeline, TimeOfLibtorchBetweenCallsIsNoWaiting) {
  Timeline t;
  t.marks = {{"step 1", 1000}};
  t.records.push_back({"rank 0", "compute", "fill", 1200, 1300});
  t.records.push_back({"rank 0", "libtorch", "libtorch", 1100, 1500});
  t.records.push_back({"rank 0", "libtorch", "libtorch", 1600, 1900});
  t.records.push_back({"rank 0", "compute", "adamw", 1900, 2000, WorkKind::optimizer});
  std::map<std::string, double> ms;
  for (const StepPart& p : parts_of(t)) ms[p.name] = p.ms;
  EXPECT_NEAR(ms["libtorch"], 0.6, 1e-9);
  EXPECT_NEAR(ms["other kernels"], 0.1, 1e-9);
  EXPECT_NEAR(ms["waiting"], 0.2, 1e-9);
}

TEST(Timeline, ChromeTraceHoldsEveryRecord) {
  const json trace = json::parse(chrome_trace(two_ranks()));
  std::map<std::string, int> phases;
  std::set<std::pair<int, std::string>> threads;
  for (const json& e : trace["traceEvents"]) {
    ++phases[e["ph"]];
    if (e["name"] == "thread_name") threads.emplace(e["pid"], e["args"]["name"]);
    if (e["name"] == "adamw") {
      EXPECT_EQ(e["cat"], "optimizer");
      EXPECT_DOUBLE_EQ(e["ts"], 950);
      EXPECT_DOUBLE_EQ(e["dur"], 50);
      EXPECT_EQ(e["pid"], 0);
    }
  }
  EXPECT_EQ(phases["X"], 6);
  EXPECT_EQ(phases["i"], 1);
  EXPECT_EQ(threads, (std::set<std::pair<int, std::string>>{
                         {0, "compute"}, {0, "gather"}, {1, "compute"}, {1, "reduce"}}));
  EXPECT_EQ(json::parse(chrome_trace({}))["traceEvents"].size(), 0u);
}

TEST(Timeline, PictureIsWellFormed) {
  const std::string svg = draw_timeline(two_ranks());
  EXPECT_EQ(xml_problem(svg), "");
  for (const char* part : {"two ranks, a &lt; b &amp; c", ">rank 0<", ">rank 1<", ">reduce_scatter<",
                           ">step 3<", ">milliseconds<", ">optimizer<", "(waits for peers included) 38 %"})
    EXPECT_THAT(svg, HasSubstr(part));
  EXPECT_THAT(svg, Not(HasSubstr("left out")));
  EXPECT_EQ(xml_problem(draw_timeline({})), "");
}

TEST(Timeline, PictureSaysWhatIsMissing) {
  Timeline t = two_ranks();
  t.left_out = 7;
  EXPECT_THAT(draw_timeline(t), HasSubstr("7 operations are left out"));
}

// However much happened: what is closer than a pixel is one bar.
TEST(Timeline, PictureStaysSmall) {
  Timeline t;
  for (int i = 0; i < 200'000; ++i)
    t.records.push_back({"rank 0", "compute", i % 7 ? "gemm" : "copy", 2.0 * i, 2.0 * i + 1,
                         i % 7 ? WorkKind::product : WorkKind::copy});
  EXPECT_LT(draw_timeline(t).size(), 100'000u);
}

TEST(TracedSteps, FromTheThirdOnOrTheLastOnes) {
  const auto steps = [](int64_t first, int64_t last, int64_t count) {
    const StepRange r = traced_steps(first, last, count);
    return std::pair(r.first, r.last);
  };
  EXPECT_EQ(steps(1, 100, 2), std::pair(int64_t{3}, int64_t{4}));
  EXPECT_EQ(steps(51, 100, 2), std::pair(int64_t{53}, int64_t{54}));
  EXPECT_EQ(steps(1, 4, 2), std::pair(int64_t{3}, int64_t{4}));
  EXPECT_EQ(steps(1, 3, 2), std::pair(int64_t{2}, int64_t{3}));
  EXPECT_EQ(steps(1, 2, 2), std::pair(int64_t{1}, int64_t{2}));
  EXPECT_EQ(steps(1, 1, 2), std::pair(int64_t{1}, int64_t{1}));
  EXPECT_EQ(steps(1, 5, 10), std::pair(int64_t{1}, int64_t{5}));
}

}  // namespace
}  // namespace sherd
