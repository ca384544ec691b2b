// googletest, the names of its matchers, and messages of exceptions.
#pragma once

#include <string>

#include <gmock/gmock.h>  // IWYU pragma: export
#include <gtest/gtest.h>  // IWYU pragma: export

namespace sherd {
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
}  // namespace sherd

/// The message of the E that `body` throws; "nothing was thrown" otherwise. Other exceptions pass through.
template <class E, class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const E& e) {
    return e.what();
  }
  return "nothing was thrown";
}
