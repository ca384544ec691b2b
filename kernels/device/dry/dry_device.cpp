#include <sherd/kernels/device/dry/dry_device.h>

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <sherd/base/error.h>
#include <sherd/kernels/device/detail/stream_scratch.h>

namespace sherd {
namespace {

/// Small blocks are real, for words that the host reads and writes; larger ones are address space that cannot
/// be touched.
class AddressSpace final : public MemorySource {
 public:
  /// @param record receives the bytes; may be null
  explicit AddressSpace(DryRecord* record) : record_(record) {}
  void* allocate(int64_t bytes) override {
    if (record_ != nullptr) record_->taken += bytes;
    const auto size = static_cast<size_t>(bytes);
    if (bytes <= kReal) {
      void* const p = std::aligned_alloc(128, size);
      return p != nullptr ? std::memset(p, 0, size) : nullptr;
    }
    void* const p = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
  }
  void release(void* p, int64_t bytes) noexcept override {
    if (record_ != nullptr) record_->returned += bytes;
    if (bytes <= kReal)
      std::free(p);
    else
      ::munmap(p, static_cast<size_t>(bytes));
  }
  std::string owner() const override { return "the address space"; }

 private:
  static constexpr int64_t kReal = int64_t{64} << 10;
  DryRecord* const record_;
};

struct DryEvent final : Event::State {
  explicit DryEvent(int64_t n) : number(n) {}
  bool done() const override { return true; }
  void synchronize() const override {}
  const int64_t number;
};

class Recorder;

class DryStream final : public Stream {
 public:
  DryStream(Recorder& device, std::string name);
  ~DryStream() override;

  void submit(Operation what, std::function<void(ExecutionContext&)>) override;
  void expect(const Work& work) override { expected_ = work; }
  void repeat(int64_t times) override { times_ = times; }
  Event record() override;
  void wait(const Event& event) override;
  void synchronize() override;
  void wait_issued() override {}
  std::exception_ptr reset_failure() override { return nullptr; }
  Device& device() const override;
  const std::string& name() const override { return name_; }
  int index() const { return index_; }

 private:
  Recorder& device_;
  const std::string name_;
  const int index_;
  Work expected_;
  int64_t times_ = 1;
  StreamScratch scratch_, workspace_;
};

class Recorder final : public DryDevice {
 public:
  explicit Recorder(const DryDeviceOptions& o)
      : options_(o),
        allocator_(o.device.label, o.device.memory_limit, std::make_unique<AddressSpace>(&record_)),
        copies_(o.device.label + " (copies from the host)", 0, host_memory()),
        tier_(o.device.label + " (host tier)", 0, std::make_unique<AddressSpace>(nullptr)) {
    allocator_.keep_within(o.keep_within);
    compute_ = make_stream("compute", StreamPriority::normal);
  }

  int threads() const override { return std::max(1, options_.device.threads); }
  Allocator& allocator() override { return allocator_; }
  Allocator& staging() override { return options_.gpu ? copies_ : allocator_; }
  Allocator& copies() override { return copies_; }
  Allocator& host_tier() override { return tier_; }
  int64_t total_memory() const override { return options_.total_memory; }
  KernelSet kernel_set() const override { return options_.device.kernels; }
  Stream& compute() override { return *compute_; }
  std::unique_ptr<Stream> make_stream(std::string name, StreamPriority) override {
    return std::make_unique<DryStream>(*this, std::move(name));
  }
  const std::string& label() const override { return options_.device.label; }
  std::string describe() const override { return "dry run, nothing is computed"; }
  const DryRecord& record() const override { return record_; }
  void clear() override {
    record_.entries.clear();
    record_.exchanges.clear();
    record_.taken = record_.returned = 0;
    first_event_ = events_ + 1;
  }
  void exchange(const Stream& stream, WorkKind kind, DryExchange exchange) override {
    record_.exchanges.push_back(std::move(exchange));
    add({.kind = DryEntry::Kind::exchange,
         .stream = dynamic_cast<const DryStream&>(stream).index(),
         .what = {"collective", kind},
         .number = static_cast<int64_t>(record_.exchanges.size()) - 1});
  }

  bool gpu() const { return options_.gpu; }
  int add_stream(const std::string& name) {
    record_.streams.push_back(name);
    return static_cast<int>(record_.streams.size()) - 1;
  }
  void add(const DryEntry& entry) { record_.entries.push_back(entry); }
  int64_t next_event() { return ++events_; }
  /// 0 for events of before the record.
  int64_t in_record(int64_t event) const { return event < first_event_ ? 0 : event; }

 private:
  const DryDeviceOptions options_;
  DryRecord record_;
  Allocator allocator_, copies_, tier_;
  int64_t events_ = 0, first_event_ = 1;
  std::unique_ptr<Stream> compute_;  // last: it returns its scratch memory
};

DryStream::DryStream(Recorder& device, std::string name)
    : device_(device),
      name_(std::move(name)),
      index_(device.add_stream(name_)),
      scratch_(device.allocator()),
      workspace_(device.allocator()) {
  device_.streams().add(*this);
}

DryStream::~DryStream() { device_.streams().remove(*this); }

Device& DryStream::device() const { return device_; }

void DryStream::submit(Operation what, std::function<void(ExecutionContext&)>) {
  Work work = std::exchange(expected_, {});
  work.times = times_;
  (void)scratch_.get(work.scratch);
  if (device_.gpu() && (what.kind == WorkKind::product || what.kind == WorkKind::orthogonalize))
    (void)workspace_.get(kProductWorkspace);
  device_.add({.stream = index_, .what = what, .work = work});
}

Event DryStream::record() {
  const auto state = std::make_shared<DryEvent>(device_.next_event());
  device_.add({.kind = DryEntry::Kind::record, .stream = index_, .number = state->number});
  return Event(state);
}

void DryStream::wait(const Event& event) {
  if (!event.state()) return;
  const int64_t number = device_.in_record(dynamic_cast<const DryEvent&>(*event.state()).number);
  if (number > 0) device_.add({.kind = DryEntry::Kind::wait, .stream = index_, .number = number});
}

void DryStream::synchronize() {
  device_.count_host_sync();
  device_.add({.kind = DryEntry::Kind::synchronize, .stream = index_});
}

}  // namespace

std::shared_ptr<DryDevice> make_dry_device(const DryDeviceOptions& options) {
  const DeviceOptions& o = options.device;
  if (o.threads < 0)
    throw InvalidArgument(fmt::format("{}: {} kernel threads; use at least 1", o.label, o.threads));
  return std::make_shared<Recorder>(options);
}

}  // namespace sherd
