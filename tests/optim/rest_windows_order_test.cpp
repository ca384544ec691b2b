// Order of the streams of state on the host: every wait of RestWindows and RestPass is needed, and none is missing.
//
// Streams of a LateDevice record what is queued. run() executes it on the test's thread in an order that the waits allow.
// A mutation leaves out one wait: some order must then give other values.

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <sherd/kernels/ops.h>
#include <sherd/optim/rest_windows.h>

#include "support/message_of.h"

namespace sherd::test::rest_order {
namespace {

/// Streams by their indices: compute, "offload in", "offload out".
using Ranking = std::vector<size_t>;
/// Number of operations of each stream.
using Clock = std::map<size_t, size_t>;

struct LateDevice final : Device {
  /// An operation, or a wait for the first `position` calls of stream `source`.
  struct Call {
    std::string name;
    std::function<void(ExecutionContext&)> work;
    size_t source = 0, position = 0;
  };
  struct Queue {
    std::string name;
    std::vector<Call> calls;
    size_t done = 0;
    Clock before;  // operations that run before the next one: its own, and those that it waits for
  };
  struct Wait {
    std::string name;
    bool implied;  // by the order of the streams and earlier waits
  };

  Allocator& allocator() override { return memory; }
  Allocator& host_tier() override { return tier; }
  KernelSet kernel_set() const override { return KernelSet::reference; }
  Stream& compute() override { return *compute_stream; }
  std::unique_ptr<Stream> make_stream(std::string stream, StreamPriority) override;
  const std::string& label() const override { return name; }
  std::string describe() const override { return "late streams"; }

  /// Runs what is queued. Of the streams that are ready, the first one in `ranking` (indices) is next.
  void run(const Ranking& ranking) {
    const auto is_ready = [&](size_t stream) {
      const Queue& q = queues[stream];
      return q.done < q.calls.size() && queues[q.calls[q.done].source].done >= q.calls[q.done].position;
    };
    ExecutionContext context;
    const auto next = [&] { return std::ranges::find_if(ranking, is_ready); };
    for (auto at = next(); at != ranking.end(); at = next()) {
      Queue& q = queues[*at];
      if (const auto& work = q.calls[q.done++].work) work(context);
    }
    for (const Queue& q : queues) EXPECT_EQ(q.done, q.calls.size()) << q.name << " waits forever";
  }

  const std::string name = "late device";
  Allocator memory{name}, tier{name + " (host tier)"};
  std::deque<Queue> queues;  // their operations hold tensors
  std::vector<Wait> waits;
  int left_out = -1;  // index of the wait that the streams ignore
  const std::unique_ptr<Stream> compute_stream = make_stream("compute", StreamPriority::normal);
};

struct LateEvent final : Event::State {
  LateEvent(size_t s, size_t p, Clock b) : source(s), position(p), before(std::move(b)) {}
  bool done() const override { return false; }
  void synchronize() const override { ADD_FAILURE() << "the host waits for an event"; }
  const size_t source, position;
  const Clock before;
};

class LateStream final : public Stream {
 public:
  LateStream(LateDevice& device, std::string name) : device_(device), index_(device.queues.size()) {
    device_.queues.push_back({.name = std::move(name)});
    device_.streams().add(*this);
  }
  ~LateStream() override { device_.streams().remove(*this); }
  void submit(Operation what, std::function<void(ExecutionContext&)> work) override {
    queue().calls.push_back({what.name, std::move(work)});
    ++queue().before[index_];
  }
  Event record() override {
    return Event(std::make_shared<LateEvent>(index_, queue().calls.size(), queue().before));
  }
  void wait(const Event& event) override {
    if (!event.state()) return;
    const auto& e = dynamic_cast<const LateEvent&>(*event.state());
    const auto known = [&](const auto& other) { return queue().before[other.first] >= other.second; };
    device_.waits.push_back({fmt::format("'{}' waits after {} calls for the first {} calls of '{}'", name(),
                                         queue().calls.size(), e.position, device_.queues[e.source].name),
                             std::all_of(e.before.begin(), e.before.end(), known)});
    const bool left_out = static_cast<int>(device_.waits.size()) - 1 == device_.left_out;
    queue().calls.push_back({"wait", {}, e.source, left_out ? 0 : e.position});
    for (const auto& [stream, operations] : e.before)
      queue().before[stream] = std::max(queue().before[stream], operations);
  }
  void synchronize() override {
    device_.count_host_sync();
    ADD_FAILURE() << "the host waits for stream '" << name() << "'";
  }
  void wait_issued() override { synchronize(); }
  std::exception_ptr reset_failure() override { return nullptr; }
  Device& device() const override { return device_; }
  const std::string& name() const override { return queue().name; }

 private:
  LateDevice::Queue& queue() const { return device_.queues[index_]; }
  LateDevice& device_;
  const size_t index_;
};

std::unique_ptr<Stream> LateDevice::make_stream(std::string stream, StreamPriority) {
  return std::make_unique<LateStream>(*this, std::move(stream));
}

/// Queues to = 2 to + from, or 2 to + 1 without `from`.
void advance(Stream& compute, const Tensor& to, const Tensor& from = {}) {
  compute.submit({"advance"}, [to, from](ExecutionContext&) {
    for (int64_t i = 0; i < to.numel(); ++i)
      to.data<float>()[i] = 2 * to.data<float>()[i] + (from.defined() ? from.data<float>()[i] : 1);
  });
}

/// Tensors of a rule, some of which need several windows.
struct Tensors {
  Tensor read, sum, large, small;  // `read` is not stored; `sum` is on the device

  explicit Tensors(Device& device)
      : read(make(device, Place::host, 300)),
        sum(make(device, Place::device, 300)),
        large(make(device, Place::host, 500)),
        small(make(device, Place::host, 60)) {}
  static Tensor make(Device& device, Place place, int64_t count) {
    const Tensor t = Tensor::at(place, device, {count}, DType::f32, MemoryClass::optimizer, "test");
    std::fill_n(t.data<float>(), count, 1000.f);  // what memory holds before its first use
    return t;
  }
  std::vector<Tensor> all() const { return {read, sum, large, small}; }
  void pass(RestWindows& windows, Stream& compute) const {
    pass(windows, compute, {{sum, read}, {large, {}}, {small, {}}});
  }
  /// Begins with what the last window of pass() has stored.
  void further_pass(RestWindows& windows, Stream& compute) const {
    pass(windows, compute, {{small, {}}, {sum, read}, {large, {}}});
  }

 private:
  static void pass(RestWindows& windows, Stream& compute, const std::vector<std::pair<Tensor, Tensor>>& all) {
    std::vector<std::pair<Tensor, Tensor>> open;
    RestPass pass(&windows, compute, [&] {
      for (const auto& [to, from] : open) advance(compute, to, from);
      open.clear();
    });
    for (const auto& [to, from] : all)
      for (int64_t begin = 0, count = 0; begin < to.numel(); begin += count) {
        count = pass.fit({to, from}, to.numel() - begin);
        const Tensor opened = pass.open(to, begin, count, true);
        open.emplace_back(opened, pass.open(from, begin, count, false));
      }
    pass.finish();
  }
};

constexpr int64_t kWindow = 1024;
constexpr int kSteps = 2;
using Values = std::vector<std::vector<float>>;

/// Queues steps of two passes on a late device; values() runs them.
struct Steps {
  LateDevice device;
  Tensors tensors{device};
  std::vector<Tensor> read_back;  // of each step
  std::unique_ptr<RestWindows> windows = std::make_unique<RestWindows>(device, kWindow);

  explicit Steps(int left_out = -1) {
    device.left_out = left_out;
    Stream& compute = device.compute();
    {  // The windows get memory that compute has yet to write.
      std::vector<Tensor> earlier(2);
      for (Tensor& t : earlier) ops::fill(compute, t = Tensors::make(device, Place::device, kWindow / 4), 3);
    }
    float first = 0;
    for (const Tensor& t : tensors.all()) {
      ops::fill(compute, t, ++first);
      windows->announce(t);
    }
    windows->allocate();
    Event ready;  // complete in the first step: allocate() has waited for compute
    for (int step = 0; step < kSteps; ++step) {
      windows->begin_step(ready);
      tensors.pass(*windows, compute);
      windows->fetch_again();
      tensors.further_pass(*windows, compute);
      windows->end_step(compute);
      for (const Tensor& t : tensors.all()) {
        read_back.push_back(Tensors::make(device, Place::device, t.numel()));
        ops::copy(compute, read_back.back(), t);
      }
      advance(compute, tensors.read);  // stands for a load of a checkpoint
      ready = compute.record();
    }
  }
  Values values(const Ranking& ranking) {
    device.run(ranking);
    Values all;
    for (const Tensor& t : read_back) all.emplace_back(t.data<float>(), t.data<float>() + t.numel());
    return all;
  }
};

Values expected() {
  Values all;
  float read = 1, sum = 2, large = 3, small = 4;
  for (int step = 0; step < kSteps; ++step) {
    for (int pass = 0; pass < 2; ++pass) sum = 2 * sum + read, large = 2 * large + 1, small = 2 * small + 1;
    all.insert(all.end(), {std::vector(300, read), std::vector(300, sum), std::vector(500, large),
                           std::vector(60, small)});
    read = 2 * read + 1;
  }
  return all;
}

const Ranking kRankings[] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

TEST(RestWindowsOrder, EveryOrderThatTheWaitsAllowGivesTheSameValues) {
  for (const Ranking& ranking : kRankings)
    EXPECT_EQ(Steps().values(ranking), expected()) << fmt::format("{}", fmt::join(ranking, ", "));
}

// Implied: begin_step()'s wait for stores, without an exception, and waits for the first use of each window after fetch_again().
TEST(RestWindowsOrder, EveryWaitThatOthersDoNotImplyIsNeeded) {
  const std::vector<LateDevice::Wait> waits = Steps().device.waits;
  std::vector<std::string> implied;
  for (size_t i = 0; i < waits.size(); ++i) {
    const bool shows = std::ranges::any_of(kRankings, [&](const Ranking& ranking) {
      return Steps(static_cast<int>(i)).values(ranking) != expected();
    });
    EXPECT_EQ(shows, !waits[i].implied) << waits[i].name;
    if (waits[i].implied) implied.push_back(waits[i].name);
  }
  EXPECT_THAT(implied, SizeIs(3 * kSteps));
  EXPECT_THAT(implied, Each(AllOf(StartsWith("'offload in' waits"), HasSubstr("of 'offload out'"))));
}

TEST(RestWindowsOrder, HostQueuesStepsBeforeAnyOperationRuns) {
  const Steps steps;
  EXPECT_EQ(steps.device.host_syncs(), 0);
  for (const LateDevice::Queue& q : steps.device.queues) EXPECT_EQ(q.done, 0u) << q.name;
}

TEST(RestWindowsOrder, StoresWaitForPendingReads) {
  LateDevice device;
  const Tensors tensors(device);
  RestWindows windows(device, kWindow);
  windows.announce(tensors.large);
  windows.allocate();
  PendingReads& reads = device.tier_reads();
  const uint64_t number = reads.add(tensors.small.raw(), tensors.small.nbytes());
  tensors.pass(windows, device.compute());
  std::vector<std::string> out;
  for (const LateDevice::Call& call : device.queues.back().calls) out.push_back(call.name);
  EXPECT_EQ(fmt::format("{}", fmt::join(out, ", ")),
            "wait, wait, offload wait, copy, wait, offload wait, copy, wait, offload wait, copy, wait, "
            "offload wait, "
            "copy, copy");
  float read = 0;
  std::thread reader([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time for a store that does not wait
    read = tensors.small.data<float>()[0];
    reads.done(number);
  });
  device.run({0, 1, 2});
  reader.join();
  EXPECT_EQ(read, 1000);
  EXPECT_EQ(tensors.small.data<float>()[0], 2001);
}

}  // namespace
}  // namespace sherd::test::rest_order
