#include <sherd/train/report/loss_svg.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/kernels/device/error.h>

#include "support/message_of.h"
#include "temporary_folder.h"
#include "train/report/non_finite.h"

namespace sherd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kUnit = "nats per byte";

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(LossSvg, HasAxesAndBothCurves) {
  const std::string svg = draw_losses({4.0, 3.0, 2.5, 2.25, 2.0}, {{2, 3.5}, {5, 2.5}}, kUnit);
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_EQ(count_of(svg, "<polyline"), 2u);
  EXPECT_EQ(count_of(svg, "<circle"), 2u);
  EXPECT_THAT(svg, AllOf(HasSubstr(">training<"), HasSubstr(">held out<"), HasSubstr(">step<"),
                         HasSubstr("nats per byte")));
  // 4.0 is the top of the axis and 2.0 its bottom, 5 steps reach the right edge.
  EXPECT_THAT(svg, AllOf(HasSubstr("212.0,40.0 "), HasSubstr("780.0,425.0 ")));
  EXPECT_EQ(count_of(draw_losses({4.0, 3.0}, {}, kUnit), "<polyline"), 1u);
}

TEST(LossSvg, SurvivesAnything) {
  for (const std::vector<double>& losses : {std::vector<double>{},
                                            {2.0},
                                            {2.0, 2.0},
                                            {kNan, kInfinity},
                                            {kNan, 2.0, kInfinity, 1.0},
                                            {0.0, 0.0},
                                            {-1.0, 1e9}}) {
    const std::string svg = draw_losses(losses, {{1, kNan}}, kUnit);
    EXPECT_THAT(svg, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf")))) << svg;
  }
}

TEST(LossSvg, LongRunsAreThinned) {
  const std::string svg = draw_losses(std::vector<double>(123'456, 1.5), {}, kUnit);
  EXPECT_LT(svg.size(), 20'000u);
}

TEST(LossSvg, WritesAFileOrThrows) {
  const TemporaryFolder folder;
  write_loss_svg(folder / "l.svg", {1.0, 2.0}, {}, kUnit);
  EXPECT_EQ(read_bytes(folder / "l.svg"), draw_losses({1.0, 2.0}, {}, kUnit));
  EXPECT_THAT(message_of<IoError>([&] { write_loss_svg(folder / "no/l.svg", {}, {}, kUnit); }),
              HasSubstr(folder / "no/l.svg"));
  EXPECT_THROW(write_loss_svg("/dev/full", {1.0}, {}, kUnit), IoError);
}

}  // namespace
}  // namespace sherd
