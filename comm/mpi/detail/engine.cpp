#include <sherd/comm/mpi/detail/engine.h>

#include <fmt/format.h>
#include <mpi.h>
#include <sys/prctl.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <sherd/base/error.h>
#include <sherd/comm/bootstrap/detail/mpi_process.h>
#include <sherd/comm/mpi/detail/process_group.h>
#include <sherd/comm/mpi/detail/requests.h>

namespace sherd::mpi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kControlTag = 0;

// Time between two polls of MPI while an operation is in flight. A poll costs about a microsecond: the
// longest pause takes half a percent of a core, and adds to the latency of a call that has waited for long
// anyway.
constexpr std::chrono::microseconds kShortestPause{10}, kLongestPause{200};

/// A received control message, or data of an abandoned batch.
struct Incoming {
  std::string bytes;
  MPI_Request request = MPI_REQUEST_NULL;
  bool is_control = true;
};

struct Order {
  std::vector<Transfer> transfers;
  std::shared_ptr<Batch> batch;  // of the transfers, or of a reduction in `group`
  std::shared_ptr<ProcessGroup> group;
  Reduction reduction;
  std::shared_ptr<std::string> message;  // or a control message to `process`
  int process = 0;
  bool abandon = false;  // the batch
};

}  // namespace

class Engine::Impl {
 public:
  Impl(const MpiOptions& options, Handlers handlers)
      : options_(options), handlers_(std::move(handlers)), thread_([this] { run(); }) {
    // The constructor returns once the MPI thread is ready, and rethrows its error on the caller's thread.
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ready_; });
    if (!failure_) return;
    lock.unlock();
    thread_.join();
    std::rethrow_exception(failure_);
  }

  ~Impl() {
    if (thread_.joinable()) close(false, std::chrono::milliseconds(0));
  }

  void order(Order order) {
    {
      std::lock_guard lock(mutex_);
      orders_.push_back(std::move(order));
    }
    changed_.notify_all();
  }

  std::shared_ptr<ProcessGroup> make_group(std::span<const int> members, uint64_t id,
                                           std::chrono::milliseconds limit, const std::string& name) {
    // On the caller's thread, since MPI_Comm_create_group blocks. Hence library_order needs
    // MPI_THREAD_MULTIPLE.
    auto group = std::make_shared<ProcessGroup>(comm_, members, id, limit, name);
    const std::lock_guard lock(mutex_);
    return groups_.emplace_back(std::move(group));
  }

  void attend(int change) {
    {
      std::lock_guard lock(mutex_);
      attention_ += change;
    }
    // Wakes the thread from its idle wait, which lasts a whole poll interval.
    if (change > 0) changed_.notify_all();
  }

  void drain() { draining_.store(true); }

  bool close(bool together, std::chrono::milliseconds patience) {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
      end_at_ = Clock::now() + patience;
      together_ = together;
    }
    changed_.notify_all();
    thread_.join();
    return ended_well_;
  }

  int process = 0, processes = 1, tag_limit = 0;

 private:
  void run() {
    prctl(PR_SET_NAME, "sherd mpi");
    // The kernel adds up to 50 microseconds to a sleep unless the thread requests less.
    prctl(PR_SET_TIMERSLACK, 1000);
    try {
      begin();
    } catch (...) {
      failure_ = std::current_exception();
    }
    {
      std::lock_guard lock(mutex_);
      ready_ = true;
    }
    changed_.notify_all();
    if (!failure_) work();
  }

  void begin() {
    const MpiPlace place = mpi_place();
    process = place.rank;
    processes = place.size;
    // A communicator of its own: it carries no messages of other users of MPI or of an earlier world.
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Comm_idup(MPI_COMM_WORLD, &comm_, &request), "MPI_Comm_idup");
    // The duplication is not blocking, so that a missing process becomes a CommError and not a hang.
    const auto deadline = Clock::now() + options_.timeout;
    auto next_look = Clock::now() + options_.poll;
    for (int done = 0;;) {
      check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup");
      if (done) break;
      // Another rank may have reported its failure meanwhile; the handler throws then.
      if (handlers_.joining && Clock::now() > next_look) {
        handlers_.joining();
        next_look = Clock::now() + options_.poll;
      }
      if (Clock::now() > deadline)
        throw CommError(
            fmt::format("MPI: not every process came to make the world's communicator within {} ms",
                        options_.timeout.count()));
      std::this_thread::sleep_for(kShortestPause);
    }
    // MPI's default handler would end the process without a report of the rank.
    check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    int* limit = nullptr;
    int found = 0;
    check_mpi(MPI_Comm_get_attr(comm_, MPI_TAG_UB, &limit, &found), "MPI_Comm_get_attr");
    // The MPI standard's minimum.
    tag_limit = found ? *limit : 32767;
  }

  // Loop of the MPI thread until close(). No MPI call here blocks, so one thread serves all communicators of
  // the process.
  void work() {
    auto pause = kShortestPause;
    for (;;) {
      std::deque<Order> orders;
      {
        std::unique_lock lock(mutex_);
        // Without pending requests the thread sleeps for a whole poll interval; otherwise it polls with
        // growing pauses.
        const auto woken = [&] { return !orders_.empty() || (closing_ && requests_.empty()); };
        if (requests_.empty() && incoming_.empty() && attention_ == 0 && !draining_.load()) {
          changed_.wait_for(lock, options_.poll, [&] { return woken() || closing_ || attention_ > 0; });
        } else if (!moved_) {
          changed_.wait_for(lock, pause, woken);
          pause = std::min(2 * pause, kLongestPause);
        }
        // Orders are taken in one swap, so that callers never wait for MPI.
        orders.swap(orders_);
        const bool nothing = orders.empty() && requests_.empty() && incoming_.empty();
        // Open requests may wait for processes that have failed: `patience` bounds them.
        if (closing_ && (nothing || Clock::now() > end_at_)) {
          ended_well_ = nothing;
          break;
        }
      }
      // Progress of this round: pauses grow only while nothing moves.
      moved_ = !orders.empty();
      for (Order& o : orders) attempt([&] { carry_out(o); });
      attempt([&] { take_messages(); });
      attempt([&] { moved_ = requests_.test() || moved_; });
      if (moved_) pause = kShortestPause;
    }
    end();
  }

  /// Reports an MPI error, which fails the launch. The thread continues, since other operations may still
  /// complete.
  template <class F>
  void attempt(F work) {
    try {
      work();
    } catch (const std::exception& e) {
      handlers_.failed(e.what());
    }
  }

  void carry_out(Order& o) {
    if (o.abandon) return requests_.cancel(o.batch);
    MPI_Request request = MPI_REQUEST_NULL;
    if (o.message) {
      check_mpi(MPI_Isend(o.message->data(), static_cast<int>(o.message->size()), MPI_BYTE, o.process,
                          kControlTag, comm_, &request),
                "MPI_Isend");
      return requests_.add(request, {.message = o.message, .process = o.process});
    }
    if (o.group) {  // the request of a collective cannot be cancelled: it is not a receive
      requests_.add(o.group->start(o.reduction), {.batch = o.batch, .process = process});
      o.batch->count(process, true, 1);
      return;  // the request replaces the order itself
    }
    for (const Transfer& t : o.transfers) {
      // MPI counts with an int, so longer transfers are split.
      for (int64_t at = 0; at < t.bytes; at += options_.max_message) {
        const int count = static_cast<int>(std::min(options_.max_message, t.bytes - at));
        // Before MPI's call: the batch stays open although an earlier part may complete at once.
        o.batch->open_.fetch_add(1);
        if (t.sends)
          check_mpi(MPI_Isend(t.data + at, count, MPI_BYTE, t.process, t.tag, comm_, &request), "MPI_Isend");
        else
          check_mpi(MPI_Irecv(t.data + at, count, MPI_BYTE, t.process, t.tag, comm_, &request), "MPI_Irecv");
        o.batch->count(t.process, t.sends, 1);
        requests_.add(request, {.batch = o.batch, .receives = !t.sends, .process = t.process});
      }
    }
    Batch::end_one(o.batch);  // releases the count that the order itself held
  }

  void take_messages() {
    for (;;) {
      int found = 0;
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      // While draining, data messages are received and dropped, too, so that their senders complete.
      check_mpi(MPI_Improbe(MPI_ANY_SOURCE, draining_.load() ? MPI_ANY_TAG : kControlTag, comm_, &found,
                            &message, &status),
                "MPI_Improbe");
      if (!found) break;
      int count = 0;
      check_mpi(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
      // A deque: MPI writes into the string until the request is done, and elements do not move.
      Incoming& in = incoming_.emplace_back();
      in.bytes.resize(static_cast<size_t>(count));
      in.is_control = status.MPI_TAG == kControlTag;
      check_mpi(MPI_Imrecv(in.bytes.data(), count, MPI_BYTE, &message, &in.request), "MPI_Imrecv");
    }
    // A large message that is incomplete holds back later ones: handlers rely on the order of one process's
    // messages.
    while (!incoming_.empty()) {  // in the order of arrival
      int done = 0;
      check_mpi(MPI_Test(&incoming_.front().request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (!done) break;
      const Incoming in = std::move(incoming_.front());
      incoming_.pop_front();
      moved_ = true;
      if (in.is_control) handlers_.message(in.bytes);
    }
  }

  void end() {
    if (!ended_well_) {
      // MPI may still use this memory.
      requests_.leak();
      // Leaked on purpose: a request that is not complete cannot be freed safely.
      static_cast<void>(new std::deque<Incoming>(std::move(incoming_)));
      return;
    }
    // MPI_Comm_free is collective; with missing processes the communicators end with the process.
    if (!together_) return;
    // In one order on all processes, should MPI wait for others in there.
    std::sort(groups_.begin(), groups_.end(), [](const auto& a, const auto& b) { return a->id() < b->id(); });
    attempt([&] {
      for (const auto& group : groups_) group->free();
    });
    MPI_Comm_free(&comm_);
  }

  const MpiOptions options_;
  const Handlers handlers_;

  std::mutex mutex_;  // these under it
  std::condition_variable changed_;
  std::deque<Order> orders_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;
  int attention_ = 0;
  bool ready_ = false, closing_ = false, together_ = false;
  Clock::time_point end_at_{};
  std::atomic<bool> draining_{false};

  // The thread's own.
  MPI_Comm comm_ = MPI_COMM_NULL;
  Requests requests_{handlers_.failed};
  std::deque<Incoming> incoming_;
  bool moved_ = false;  // in the last poll
  bool ended_well_ = false;
  std::exception_ptr failure_;

  std::thread thread_;  // last: it uses all of these
};

Engine::Engine(const MpiOptions& options, Handlers handlers)
    : impl_(std::make_unique<Impl>(options, std::move(handlers))) {}
Engine::~Engine() = default;

int Engine::process() const { return impl_->process; }
int Engine::processes() const { return impl_->processes; }
int Engine::tag_limit() const { return impl_->tag_limit; }

void Engine::write(int process, std::string message) {
  impl_->order({.message = std::make_shared<std::string>(std::move(message)), .process = process});
}

std::shared_ptr<Batch> Engine::start(const std::vector<Transfer>& transfers, std::shared_ptr<const void> keep,
                                     std::function<void()> on_done) {
  const auto batch = std::make_shared<Batch>();
  // The order's own count: carry_out() releases it, so an order without transfers completes, too.
  batch->open_ = 1;
  batch->keep_ = std::move(keep);
  batch->on_done_ = std::move(on_done);
  impl_->order({.transfers = transfers, .batch = batch});
  return batch;
}

std::shared_ptr<ProcessGroup> Engine::make_group(std::span<const int> processes, uint64_t id,
                                                 std::chrono::milliseconds limit, const std::string& name) {
  return impl_->make_group(processes, id, limit, name);
}

std::shared_ptr<Batch> Engine::start(const std::shared_ptr<ProcessGroup>& group, const Reduction& reduction,
                                     std::vector<int> processes, std::shared_ptr<const void> keep,
                                     std::function<void()> on_done) {
  const auto batch = std::make_shared<Batch>();
  batch->open_ = 1;
  // For late(): MPI does not report which process a reduction waits for.
  batch->everybody_ = std::move(processes);
  batch->keep_ = std::move(keep);
  batch->on_done_ = std::move(on_done);
  impl_->order({.batch = batch, .group = group, .reduction = reduction});
  return batch;
}

void Engine::abandon(const std::shared_ptr<Batch>& batch) { impl_->order({.batch = batch, .abandon = true}); }

void Engine::drain() { impl_->drain(); }
bool Engine::close(bool together, std::chrono::milliseconds patience) {
  return impl_->close(together, patience);
}
void Engine::attend(int change) { impl_->attend(change); }

}  // namespace sherd::mpi
