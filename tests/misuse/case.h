// Programs that use sherd wrongly, and what may come of it: an error that names the place, or a right result.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace sherd::misuse {

/// Numbers of a case. The same on every platform.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  /// 0 .. n-1
  int below(int n) { return static_cast<int>(engine_() % static_cast<uint64_t>(n)); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  const T& of(const std::vector<T>& all) {
    return all[static_cast<size_t>(below(static_cast<int>(all.size())))];
  }

 private:
  std::mt19937_64 engine_;
};

/// Error of a user's own code: its message must be passed on.
struct OwnError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Case {
  /// Description of the case, with all choices: enough to reproduce it.
  std::string name;
  /// "" when the result is right, else the error that no call has reported. May throw: errors of
  /// sherd, or an OwnError, end the case well.
  std::function<std::string()> run;
};

enum class Ending { named_error, right_result, unnamed_error, silent, crash, hang };
const char* name_of(Ending ending);

struct Ended {
  Ending ending = Ending::crash;
  /// The error, or what is wrong.
  std::string words;
  double seconds = 0;
};

/// Runs each in a process of its own, a few at a time; one that runs longer than `seconds` is killed and
/// counts as hung. The calling process must have one thread only.
std::vector<Ended> run_all(const std::vector<Case>& cases, double seconds);

std::vector<Case> mesh_cases(uint64_t seed, int count);
std::vector<Case> option_cases(uint64_t seed, int count);
std::vector<Case> order_cases(uint64_t seed, int count);
std::vector<Case> collective_cases(uint64_t seed, int count);
std::vector<Case> number_cases(uint64_t seed, int count);
std::vector<Case> ending_cases(uint64_t seed, int count);

}  // namespace sherd::misuse
