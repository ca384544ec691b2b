#include <sherd/train/report/loss_svg.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <sherd/base/error.h>

#include "support/message_of.h"
#include "temporary_folder.h"
#include "train/report/non_finite.h"

namespace sherd {
namespace {

constexpr const char* kUnit = "nats per byte";

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

LossCurve curve(const std::vector<double>& losses) {
  LossCurve all;
  for (size_t i = 0; i < losses.size(); ++i) all.add(static_cast<int64_t>(i) + 1, losses[i]);
  return all;
}

TEST(LossSvg, HasAxesAndBothCurves) {
  LossCurve held_out;
  held_out.add(2, 3.5);
  held_out.add(5, 2.5);
  const std::string svg = draw_losses(curve({4.0, 3.0, 2.5, 2.25, 2.0}), held_out, kUnit);
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_EQ(count_of(svg, "<polyline"), 2u);
  EXPECT_EQ(count_of(svg, "<circle"), 2u);
  EXPECT_THAT(svg, AllOf(HasSubstr(">training<"), HasSubstr(">held out<"), HasSubstr(">step<"),
                         HasSubstr("nats per byte")));
  // 4.0 is the top of the axis and 2.0 its bottom, 5 steps reach the right edge.
  EXPECT_THAT(svg, AllOf(HasSubstr("212.0,40.0 "), HasSubstr("780.0,425.0 ")));
  EXPECT_EQ(count_of(draw_losses(curve({4.0, 3.0}), {}, kUnit), "<polyline"), 1u);
}

TEST(LossSvg, SurvivesAnything) {
  for (const std::vector<double>& losses : {std::vector<double>{},
                                            {2.0},
                                            {2.0, 2.0},
                                            {kNan, kInfinity},
                                            {kNan, 2.0, kInfinity, 1.0},
                                            {0.0, 0.0},
                                            {-1.0, 1e9}}) {
    const std::string svg = draw_losses(curve(losses), curve({kNan}), kUnit);
    EXPECT_THAT(svg, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf")))) << svg;
  }
}

TEST(LossSvg, LongRunsAreThinned) {
  const std::string svg = draw_losses(curve(std::vector<double>(123'456, 1.5)), {}, kUnit);
  EXPECT_LT(svg.size(), 20'000u);
}

TEST(LossCurve, HasAsManyPointsForAnyNumberOfSteps) {
  LossCurve curve, sparse;
  for (int64_t step = 1; step <= 100'000; ++step) {
    curve.add(step, step % 10 == 0 ? kNan : static_cast<double>(step));
    if (step % 50 == 0) sparse.add(step, 1.0);
    ASSERT_LE(curve.points().size(), LossCurve::kMost) << step;
    if (step == 2000) {
      EXPECT_EQ(curve.points().front(), std::pair(1.5, 1.5)) << "the average of two steps";
      EXPECT_EQ(curve.points()[4], std::pair(9.0, 9.0)) << "of which one is finite";
    }
    if (step > 3000) step += 97;
  }
  for (const auto& [step, loss] : curve.points()) EXPECT_NEAR(step, loss, 1e-9 * step);
  EXPECT_GE(curve.points().size(), LossCurve::kMost / 4);
  for (int64_t step = 200'000; step <= 200'000'000; step += 100'000) sparse.add(step, 1.0);
  EXPECT_LE(sparse.points().size(), LossCurve::kMost);
  EXPECT_EQ(sparse.last_step(), 200'000'000);
}

TEST(LossSvg, WritesAFileOrThrows) {
  const TemporaryFolder folder;
  write_loss_svg(folder / "l.svg", curve({1.0, 2.0}), {}, kUnit);
  EXPECT_EQ(read_bytes(folder / "l.svg"), draw_losses(curve({1.0, 2.0}), {}, kUnit));
  EXPECT_THAT(message_of<IoError>([&] { write_loss_svg(folder / "no/l.svg", {}, {}, kUnit); }),
              HasSubstr(folder / "no/l.svg"));
  EXPECT_THROW(write_loss_svg("/dev/full", curve({1.0}), {}, kUnit), IoError);
}

}  // namespace
}  // namespace sherd
