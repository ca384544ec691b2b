// Text from outside in messages.
#include <sherd/base/printable.h>

#include <gtest/gtest.h>

namespace sherd {
namespace {

TEST(Printable, WhatDrivesATerminalIsEscaped) {
  EXPECT_EQ(printable("plain, gr\xc3\xb6\xc3\x9f"
                      "e.\xe9\x87\x8d \xf0\x9f\x8f\xba"),
            "plain, gr\xc3\xb6\xc3\x9f"
            "e.\xe9\x87\x8d \xf0\x9f\x8f\xba");
  EXPECT_EQ(printable(std::string("a\x1b[2J\r\n\t\0\x7f", 10)),
            "a\\u001b[2J\\u000d\\u000a\\u0009\\u0000\\u007f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\u009b2J");  // CSI in one character
  EXPECT_EQ(printable("\xe2\x80\xae"
                      "gpj.exe"),
            "\\u202egpj.exe");  // displayed from right to left
  EXPECT_EQ(printable("caf\xe9 \xc0\xaf \xed\xa0\x80"), "caf\\xe9 \\xc0\\xaf \\xed\\xa0\\x80");
  EXPECT_EQ(printable_lines("one\n\ttwo\x1b[m\r"), "one\n\ttwo\\u001b[m\\u000d");
}

TEST(Printable, LongTextsAreCutBetweenCharacters) {
  EXPECT_EQ(printable(std::string(400, 'x')), std::string(300, 'x') + "...");
  EXPECT_EQ(printable("ab\xe9\x87\x8d", 4), "ab...");
  EXPECT_EQ(printable("ab\xe9\x87\x8d", 5), "ab\xe9\x87\x8d");
  EXPECT_EQ(printable(std::string(10, '\x80'), 4), "\\x80...") << "no characters at all";
  EXPECT_EQ(printable("", 0), "");
}

}  // namespace
}  // namespace sherd
