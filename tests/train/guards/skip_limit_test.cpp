#include <sherd/train/guards/skip_limit.h>

#include "support/message_of.h"

namespace sherd {
namespace {

TEST(SkipLimit, CountsConsecutiveStepsAndSaysWhichWeightsAreLeft) {
  SkipLimit limit(2);
  EXPECT_FALSE(limit.next_is_the_last());
  EXPECT_TRUE(limit.count(1, 1));
  EXPECT_TRUE(limit.next_is_the_last());
  EXPECT_FALSE(limit.count(2, 1)) << "this one was not";
  EXPECT_EQ(limit.in_a_row(), 0);
  EXPECT_TRUE(limit.count(3, 2));
  EXPECT_EQ(limit.reached(), "");
  EXPECT_TRUE(limit.count(4, 3));
  EXPECT_EQ(limit.in_a_row(), 2);
  EXPECT_THAT(limit.reached(), AllOf(HasSubstr("2 consecutive steps, up to step 4"),
                                     HasSubstr("--max-skipped-steps"), HasSubstr("those after step 2")));
}

TEST(SkipLimit, ZeroDisablesTheLimit) {
  SkipLimit limit(0);
  for (int64_t step = 1; step <= 100; ++step) (void)limit.count(step, step);
  EXPECT_EQ(limit.in_a_row(), 100);
  EXPECT_FALSE(limit.next_is_the_last());
  EXPECT_EQ(limit.reached(), "");
}

}  // namespace
}  // namespace sherd
