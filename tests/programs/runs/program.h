// Runs train_gpt as a program and reads what it leaves.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace sherd::test {

struct Finished {
  int exit_code = -1;
  double seconds = 0;
  std::string out, err;
};

/// Runs train_gpt with these arguments and waits; a run of more than 120 s is killed (exit code 124). `launcher`: words before
/// the command.
Finished run_train_gpt(const std::vector<std::string>& arguments, const std::string& launcher = "");

/// The folder of this test's files; made on first use, unique to the process.
std::filesystem::path scratch(const std::string& name);
/// The same, without what was there.
std::filesystem::path fresh(const std::string& name);

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, const std::string& bytes);

/// The step lines of a metrics file.
std::vector<nlohmann::json> read_steps(const std::filesystem::path& path);

/// The text that the golden runs train on (tests/golden/make_golden.py, golden_data()).
std::string golden_text();

}  // namespace sherd::test
