#include "programs/runs/program.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace sherd::test {

namespace fs = std::filesystem;

Finished run_train_gpt(const std::vector<std::string>& arguments, const std::string& launcher) {
  auto quoted = [](const std::string& s) {
    std::string q(1, '\'');
    for (char c : s) {
      if (c == '\'') q.append("'\\'");
      q.push_back(c);
    }
    q.push_back('\'');
    return q;
  };
  const fs::path out = scratch("stdout"), err = scratch("stderr");
  std::string command =
      "timeout -k 5 120 " + launcher + " " + quoted(TRAIN_GPT) + " --threads " + TEST_THREADS;
  for (auto& a : arguments) command += " " + quoted(a);
  command += " >" + quoted(out) + " 2>" + quoted(err) + " </dev/null";
  const auto start = std::chrono::steady_clock::now();
  const int status = std::system(command.c_str());
  Finished f;
  f.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  f.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  f.out = read_file(out);
  f.err = read_file(err);
  return f;
}

fs::path scratch(const std::string& name) {
  const fs::path folder = fs::temp_directory_path() / ("sherd_test_" + std::to_string(getpid()));
  fs::create_directories(folder);
  static const struct Cleaner {
    fs::path folder;
    ~Cleaner() {
      std::error_code ignored;
      fs::remove_all(folder, ignored);
    }
  } cleaner{folder};
  return folder / name;
}

fs::path fresh(const std::string& name) {
  const fs::path folder = scratch(name);
  fs::remove_all(folder);
  return folder;
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::vector<nlohmann::json> read_steps(const fs::path& path) {
  std::vector<nlohmann::json> steps;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    auto j = nlohmann::json::parse(line);
    if (!j.contains("config")) steps.push_back(std::move(j));
  }
  return steps;
}

std::string golden_text() {
  static const char* const words[] = {"the",  "of",  "and", "to",   "in",   "is",   "it",   "that",
                                      "\n",   "was", "for", "on",   "are",  "as",   "with", "his",
                                      "they", "at",  "be",  "this", "from", "have", "or",   "by",
                                      "one",  "had", "not", "but",  "what", "all",  "were"};
  std::string text;
  uint32_t x = 1;
  while (text.size() < 65536) {
    uint32_t product = 1;
    for (int i = 0; i < 2; ++i) {
      x = 1664525u * x + 1013904223u;
      product *= x >> 27;
    }
    text += words[product >> 5];
    text += ' ';
  }
  text.resize(65536);
  return text;
}

}  // namespace sherd::test
