#include "late.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "strict.h"

namespace cuda_host {
namespace {

using Clock = std::chrono::steady_clock;

const char* setting() {
  const char* text = std::getenv("SHERD_HOST_CUDA_LATE");
  return text ? text : "";
}

class Engine {
 public:
  Engine() : random_(static_cast<unsigned>(std::strtoul(setting(), nullptr, 10))) {
    if (late()) thread_ = std::thread([this] { run(); });
  }
  ~Engine() {
    if (!thread_.joinable()) return;
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  StreamId add() {
    std::lock_guard lock(mutex_);
    return ++last_;
  }

  void issue(StreamId stream, std::function<void()> work) {
    {
      std::lock_guard lock(mutex_);
      if (const auto graph = graphs_.find(stream); graph != graphs_.end()) {
        graph->second.push_back(std::move(work));
        return;
      }
      if (late()) {
        put(stream, {std::move(work), nullptr, nullptr});
        return;
      }
    }
    work();
  }

  std::shared_ptr<const Mark> mark(StreamId stream) {
    auto mark = std::make_shared<Mark>();
    std::lock_guard lock(mutex_);
    if (late() && !graphs_.contains(stream))
      put(stream, {{}, mark, nullptr});
    else
      *mark = {true, Clock::now()};
    return mark;
  }

  void wait(StreamId stream, std::shared_ptr<const Mark> mark) {
    std::lock_guard lock(mutex_);
    if (late() && !graphs_.contains(stream)) put(stream, {{}, nullptr, std::move(mark)});
  }

  void reach(Mark& mark) {
    std::lock_guard lock(mutex_);
    mark = {true, Clock::now()};
    changed_.notify_all();
  }

  void synchronize(const Mark& mark) {
    std::unique_lock lock(mutex_);
    await(lock, [&] { return mark.reached; });
  }
  bool reached(const Mark& mark) {
    std::lock_guard lock(mutex_);
    return mark.reached;
  }
  Clock::time_point time_of(const Mark& mark) {
    std::lock_guard lock(mutex_);
    return mark.time;
  }

  size_t queued(StreamId stream) {
    std::lock_guard lock(mutex_);
    const auto at = queues_.find(stream);
    return at == queues_.end() ? 0 : at->second.tasks.size();
  }

  bool captured(StreamId stream) {
    std::lock_guard lock(mutex_);
    return graphs_.contains(stream);
  }
  void begin_capture(StreamId stream) {
    std::lock_guard lock(mutex_);
    graphs_[stream];
  }
  Graph end_capture(StreamId stream) {
    std::lock_guard lock(mutex_);
    return std::move(graphs_.extract(stream).mapped());
  }

 private:
  /// One of the three.
  struct Task {
    std::function<void()> work;
    std::shared_ptr<Mark> mark;
    std::shared_ptr<const Mark> wait;
  };
  struct Queue {
    uint64_t rank = 0;
    std::deque<Task> tasks;
  };

  void put(StreamId stream, Task task) {
    auto [at, added] = queues_.try_emplace(stream);
    if (added) at->second.rank = random_();
    at->second.tasks.push_back(std::move(task));
    changed_.notify_all();
  }

  template <class Done>
  void await(std::unique_lock<std::mutex>& lock, Done done) {
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, done);
    --waiting_;
  }

  /// The stream that runs next, or queues_.end().
  std::map<StreamId, Queue>::iterator choose() {
    auto best = queues_.end();
    for (auto at = queues_.begin(); at != queues_.end();) {
      if (at->second.tasks.empty()) {
        at = queues_.erase(at);
        continue;
      }
      const Task& next = at->second.tasks.front();
      if ((!next.wait || next.wait->reached) &&
          (best == queues_.end() || at->second.rank > best->second.rank))
        best = at;
      ++at;
    }
    return best;
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      auto at = choose();
      if (at == queues_.end()) {
        if (ending_) return;
        changed_.wait(lock);
        continue;
      }
      if (waiting_ == 0 && !ending_ && random_() % 16 == 0) {
        changed_.wait_for(lock, std::chrono::microseconds(300), [&] { return waiting_ > 0 || ending_; });
        at = choose();
      }
      if (random_() % 8 == 0) at->second.rank = random_();
      Task task = std::move(at->second.tasks.front());
      at->second.tasks.pop_front();
      if (task.work) {
        lock.unlock();
        try {
          task.work();
          task.work = {};
        } catch (const std::exception& e) {
          std::fprintf(stderr, "imitated GPU: %s\n", e.what());
          std::abort();
        }
        lock.lock();
      }
      if (task.mark) *task.mark = {true, Clock::now()};
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937 random_;
  std::map<StreamId, Queue> queues_;
  std::map<StreamId, Graph> graphs_;  // of the streams that are captured
  StreamId last_ = 0;
  int64_t waiting_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

Engine& engine() {
  static Engine e;
  return e;
}

}  // namespace

bool late() {
  static const bool answer = setting()[0] != '\0' || strict::on();
  return answer;
}
StreamId new_stream() { return engine().add(); }
size_t queued(StreamId stream) { return engine().queued(stream); }
void issue(StreamId stream, std::function<void()> work) { engine().issue(stream, std::move(work)); }
std::shared_ptr<const Mark> mark(StreamId stream) { return engine().mark(stream); }
std::shared_ptr<Mark> open_mark() { return std::make_shared<Mark>(); }
void reach(Mark& mark) { engine().reach(mark); }
void wait(StreamId stream, std::shared_ptr<const Mark> m) { engine().wait(stream, std::move(m)); }
void synchronize(const Mark& mark) { engine().synchronize(mark); }
bool reached(const Mark& mark) { return engine().reached(mark); }
std::chrono::steady_clock::time_point time_of(const Mark& mark) { return engine().time_of(mark); }
bool captured(StreamId stream) { return engine().captured(stream); }
void begin_capture(StreamId stream) { engine().begin_capture(stream); }
Graph end_capture(StreamId stream) { return engine().end_capture(stream); }

}  // namespace cuda_host
