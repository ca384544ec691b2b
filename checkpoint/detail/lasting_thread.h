// Long-lived thread for consecutive jobs.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace sherd {

/// One thread for all jobs, one at a time. A thread of its own for each job would cost memory again and again: the C
/// library gives new threads memory pools of their own, up to a bound, and keeps what their jobs have freed.
class LastingThread {
 public:
  LastingThread() = default;
  /// Waits for the job that is being done.
  ~LastingThread();
  LastingThread(const LastingThread&) = delete;
  LastingThread& operator=(const LastingThread&) = delete;

  /// `job` throws nothing; the one before it is done (see wait()). The thread begins with the first job.
  /// @throws std::system_error when no thread can be had.
  void start(std::function<void()> job);
  /// Returns when no job is being done. What the job wrote can be read then.
  void wait();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_;  // empty when none is being done
  bool ends_ = false;
  std::thread thread_;  // last: it uses all of these
};

}  // namespace sherd
