// JSON that other programs wrote: limits, and values in messages.
#include <sherd/base/detail/json_text.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string refusal(const std::string& text) {
  return message_of<JsonError>([&] { read_json(text); });
}

TEST(JsonText, HasLimits) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_EQ(read_json(nested(64)).size(), 1u);
  EXPECT_EQ(refusal(nested(65)), "is nested more than 64 deep");
  EXPECT_EQ(refusal(std::string(10'000'000, '[')), "is nested more than 64 deep");
  EXPECT_THAT(refusal(R"({"a":{"b":1,"b":2}})"), HasSubstr("the key \"b\" appears twice"));
  EXPECT_EQ(refusal(std::string("1\0", 2)), "holds a zero byte");
  EXPECT_THAT(refusal("{\x1b[2J"), HasSubstr("is not valid JSON"));
  EXPECT_EQ(refusal("{\x1b[2J").find('\x1b'), std::string::npos);
  EXPECT_EQ(message_of<JsonError>([] { read_json("[1,{},[2]]", 4); }), "has more than 4 values");
  EXPECT_EQ(read_json("[1,{},[2]]", 5).size(), 3u);
  EXPECT_EQ(read_json_or_null("{"), nullptr);
}

TEST(JsonText, ShowsTheBeginningOfAValueAlone) {
  EXPECT_EQ(shown_value(json::parse(R"({"a":[1,"x\u001b",null],"b":{}})")),
            R"({"a":[1,"x\u001b",null],"b":{}})");
  json deep = 1;
  for (int i = 0; i < 100'000; ++i) deep = json::array({std::move(deep)});
  EXPECT_EQ(shown_value(deep, 20), std::string(20, '[') + "...");
  EXPECT_LT(shown_value(json(std::string(10'000'000, 'x'))).size(), 90u);
  EXPECT_LT(shown_value(json::array_t(1'000'000, json::object())).size(), 90u);
}

}  // namespace
}  // namespace sherd
