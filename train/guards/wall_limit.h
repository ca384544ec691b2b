// Wall-clock limit of a run, with time for the last save.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>

namespace sherd {

/// Takes the durations of steps and saves, and computes the latest moment at which a run may still continue.
/// Seconds count from the moment that the limit counts from (the program's start, say).
///
///     stop when  now + 2 * step + 1.5 * save > limit
///
/// where step is the longest of the latest 64 steps but the run's first, with its evaluation and everything
/// else in the loop, and save is the longest save so far. Two steps, since the next step is already issued
/// when the decision of the one before it is received. Before a save was measured, a save is taken to last a
/// twentieth of the limit, at most a minute: runs whose saves take longer save now and then, so that it is
/// known.
class WallLimit {
 public:
  /// @param limit in seconds; 0: unlimited.
  explicit WallLimit(double limit);

  double limit() const { return limit_; }
  /// Adds the duration of a step of the loop, without its waits for saves.
  void step_took(double seconds);
  /// Adds the duration of a save, from its beginning to the commit.
  void save_took(double seconds);
  /// Returns the time from which on the run is to stop. Any thread, as reached().
  double latest() const { return latest_.load(std::memory_order_relaxed); }
  bool reached(double now) const { return limit_ > 0 && now >= latest(); }

 private:
  void update();

  static constexpr size_t kSteps = 64;
  double limit_;
  bool warm_ = false;  // the first step has completed
  std::deque<double> steps_;
  double first_step_ = 0, save_;
  bool measured_ = false;
  std::atomic<double> latest_;
};

}  // namespace sherd
