#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>

#include <sherd/kernels/device/detail/queue_stream.h>
#include <sherd/kernels/reduce/reduce.h>

#include "comm/fake_nccl_world.h"

namespace sherd::test::fake_nccl {
namespace {

/// Done when what was issued on a stream before is done.
class FakeEvent final : public NativeEvent {
 public:
  explicit FakeEvent(std::vector<Op> before) : before_(std::move(before)) {}
  bool done() const override {
    std::lock_guard lock(world().mutex);
    return std::all_of(before_.begin(), before_.end(), [](const Op& op) { return op->done; });
  }
  void synchronize() const override {
    while (!done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  const std::vector<Op> before_;
};

class FakeStamp final : public NativeStamp {
 public:
  bool done() const override { return true; }
  void synchronize() const override {}
  double microseconds() const override { return at_; }

 private:
  const double at_ = Trace::now();
};

class FakeQueue final : public NativeQueue {
 public:
  explicit FakeQueue(Allocator& allocator) : allocator_(allocator) {}
  ~FakeQueue() override { allocator_.release(scratch_); }
  void start() override {}
  void finish() noexcept override {
    FakeEvent(outstanding()).synchronize();
    kept_.clear();
  }
  void* handle() const override { return const_cast<FakeQueue*>(this); }
  std::shared_ptr<NativeEvent> record() override {
    auto before = outstanding();
    if (before.empty()) kept_.clear();
    return std::make_shared<FakeEvent>(std::move(before));
  }
  std::shared_ptr<NativeStamp> stamp() override {
    FakeEvent(outstanding()).synchronize();
    return std::make_shared<FakeStamp>();
  }
  void wait(const NativeEvent& event) override { event.synchronize(); }
  void keep(std::shared_ptr<const void> object) override { kept_.push_back(std::move(object)); }
  void after(std::function<void()> f) override {
    FakeEvent(outstanding()).synchronize();
    f();
  }
  void* scratch(int64_t bytes) override {
    if (bytes > bytes_) {
      allocator_.release(scratch_);
      scratch_ = allocator_.allocate(bytes, MemoryClass::scratch, "fake scratch", true);
      bytes_ = bytes;
    }
    return scratch_;
  }

 private:
  std::vector<Op> outstanding() {
    std::lock_guard lock(world().mutex);
    std::vector<Op> ops;
    for (const ncclComm& comm : world().communicators)
      for (const Op& op : comm.pending)
        if (op->stream == this && !op->done) ops.push_back(op);
    return ops;
  }

  Allocator& allocator_;
  std::vector<std::shared_ptr<const void>> kept_;
  void* scratch_ = nullptr;
  int64_t bytes_ = 0;
};

/// The host's memory, with a bound on the number of blocks.
class FewBlocks final : public MemorySource {
 public:
  explicit FewBlocks(int most) : left_(most) {}
  void* allocate(int64_t bytes) override {
    if (left_.fetch_sub(1) > 0) return std::aligned_alloc(128, static_cast<size_t>(bytes));
    ++left_;
    return nullptr;
  }
  void release(void* p, int64_t) noexcept override {
    ++left_;
    std::free(p);
  }
  std::string owner() const override { return "the imitated GPU"; }

 private:
  std::atomic<int> left_;
};

class QueueDevice final : public Device {
 public:
  QueueDevice(const std::string& label, int blocks, int64_t limit)
      : limit_(limit),
        allocator_(label, limit, blocks > 0 ? std::make_unique<FewBlocks>(blocks) : nullptr),
        host_(make_cpu_device({.label = label, .kernels = KernelSet::reference})),
        compute_(make_stream("compute")) {}
  Allocator& allocator() override { return allocator_; }
  int64_t total_memory() const override { return limit_ > 0 ? int64_t{1} << 40 : 0; }
  int64_t taken_memory() const override {
    const Log now = log();
    const int64_t communicators = now.made - now.destroyed - now.aborted;
    // Memory that the allocator counts as NCCL's is not its own.
    return allocator_.held_bytes() - allocator_.live_bytes("NCCL") + communicators * kCommunicatorBytes +
           now.used * kFirstCallBytes;
  }
  KernelSet kernel_set() const override { return KernelSet::reference; }
  Stream& compute() override { return *compute_; }
  std::unique_ptr<Stream> make_stream(std::string name, StreamPriority) override {
    return make_stream(std::move(name));
  }
  const std::string& label() const override { return host_->label(); }
  std::string describe() const override { return "an imitated GPU"; }

 private:
  const void* own_kernels(const std::type_info& family) const override {
    return family == typeid(ReduceKernels) ? scratch_user() : nullptr;
  }
  /// The reference's, with a reduction that uses the stream's scratch memory as CUDA's does.
  static const ReduceKernels* scratch_user() {
    static const ReduceKernels table = [] {
      ReduceKernels t = *ReduceKernels::reference();
      t.reduce = [](ExecutionContext& context, const ReduceArgs& args) {
        std::memset(context.scratch(1 << 12), 0x55, 1 << 12);
        ReduceKernels::reference()->reduce(context, args);
      };
      return t;
    }();
    return &table;
  }
  std::unique_ptr<Stream> make_stream(std::string name) {
    return std::make_unique<QueueStream>(*this, std::move(name), 1, std::make_unique<FakeQueue>(allocator_));
  }
  const int64_t limit_;
  Allocator allocator_;
  std::shared_ptr<Device> host_;
  std::unique_ptr<Stream> compute_;
};

}  // namespace

std::shared_ptr<Device> make_queue_device(const std::string& label, int blocks, int64_t limit) {
  return std::make_shared<QueueDevice>(label, blocks, limit);
}

}  // namespace sherd::test::fake_nccl
