// train_gpt's settings from flags, for tests.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include <sherd/base/error.h>

#include "support/message_of.h"
#include "temporary_folder.h"
#include "train_gpt/rules/parse_config.h"
#include "train_gpt/settings/train_config.h"

namespace train_gpt {

inline CommandLine parse_line(const std::vector<std::string>& flags) {
  std::vector<const char*> argv = {"train_gpt"};
  for (const auto& flag : flags) argv.push_back(flag.c_str());
  return parse_config(static_cast<int>(argv.size()), argv.data());
}

inline TrainConfig parse(const std::vector<std::string>& flags) {
  const CommandLine line = parse_line(flags);
  EXPECT_EQ(line.help, std::nullopt);
  return line.config;
}

inline std::string refusal(const std::vector<std::string>& flags) {
  return message_of<sherd::InvalidArgument>([&] { parse_line(flags); });
}

}  // namespace train_gpt
