// Tokens and targets of multi-token prediction.
#include "train_gpt/run/next_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace train_gpt {
namespace {

using ::testing::ElementsAre;

TEST(NextRows, AreOneAndTwoTokensLaterUpToTheEndOfEachRow) {
  const NextRows next = next_rows({5, 6, 7, 1, 2, 3}, {6, 7, 8, 2, 3, 4}, {}, {3, 3}, 3);
  EXPECT_THAT(next.tokens, ElementsAre(6, 7, 8, 2, 3, 4));
  EXPECT_THAT(next.targets, ElementsAre(7, 8, -1, 3, 4, -1));
}

// Examples 5 6 7 8 and 1 2 3, of which 8, 2 and 3 are learned, then a place without one.
TEST(NextRows, StayInsideOfExamplesAndLearnWhatTheseLearn) {
  const NextRows next = next_rows({5, 6, 7, 1, 2, 0}, {-1, -1, 8, 2, 3, -1}, {0, 0, 0, 3, 3, 5}, {5}, 6);
  EXPECT_THAT(next.tokens, ElementsAre(6, 7, 8, 2, 3, 0));
  EXPECT_THAT(next.targets, ElementsAre(-1, 8, -1, 3, -1, -1));
}

// A row of one example, without starts.
TEST(NextRows, OfARowWithPlacesLeftEndWithItsExample) {
  const NextRows next = next_rows({5, 6, 0, 0}, {-1, 7, -1, -1}, {}, {2}, 4);
  EXPECT_THAT(next.tokens, ElementsAre(6, 7, 0, 0));
  EXPECT_THAT(next.targets, ElementsAre(7, -1, -1, -1));
}

// Examples 5 6 7 and 1 2 of which 6 alone is learned: their last tokens are not among the data. Rows of any length.
TEST(NextRows, OfAnExampleThatEndsWithContextDependOnItsOwnTokensAlone) {
  const NextRows full = next_rows({5, 6}, {6, -1}, {}, {2}, 2);
  EXPECT_THAT(full.tokens, ElementsAre(6, 6));
  EXPECT_THAT(full.targets, ElementsAre(-1, -1));
  const NextRows padded = next_rows({5, 6, 0, 0}, {6, -1, -1, -1}, {}, {2}, 4);
  EXPECT_THAT(padded.tokens, ElementsAre(6, 6, 0, 0));
  const NextRows packed = next_rows({5, 6, 1, 0}, {6, -1, -1, -1}, {0, 0, 2, 3}, {3}, 4);
  EXPECT_THAT(packed.tokens, ElementsAre(6, 6, 1, 0));
}

}  // namespace
}  // namespace train_gpt
