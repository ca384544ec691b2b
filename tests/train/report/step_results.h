// Steps as tests make them up, and text as lines.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include <sherd/train/report/step_result.h>

namespace sherd::test {

inline StepResult result_of(int64_t step) {
  StepResult r;
  r.step = step;
  r.loss = 2.5;
  r.tokens_per_s = 45'230;
  return r;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace sherd::test
