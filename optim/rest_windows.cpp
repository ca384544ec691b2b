#include <sherd/optim/rest_windows.h>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include <sherd/fsdp/noise_runs.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

/// Pieces begin where kernels load and store whole vectors.
constexpr int64_t kAlign = 128;
/// A window with less room than this for each tensor is closed rather than filled.
constexpr int64_t kLeast = 64;
/// Bytes for a block of each of several states.
constexpr int64_t kRoomOfBlocks = int64_t{16} << 10;
/// Room for an element of each of several tensors beside those that are announced.
constexpr int64_t kSlack = 8 * kAlign;

/// Bounds of windows whose size is not given, and of their number in a step.
constexpr int64_t kSmallest = int64_t{1} << 20, kLargest = int64_t{64} << 20, kMostWindows = 1'000'000;
/// The same where nothing is fetched: a few launches of a GPU take as long as they move bytes, and a CPU's cache holds a window.
constexpr int64_t kLargestOnGpu = int64_t{32} << 20, kLargestOnCpu = int64_t{8} << 20;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

bool on_host(const Tensor& t) { return t.defined() && t.place() == Place::host; }

int64_t bytes_on_host(const std::vector<Tensor>& tensors) {
  int64_t bytes = 0;
  for (const Tensor& t : tensors)
    if (on_host(t)) bytes += aligned(t.nbytes());
  return bytes;
}

}  // namespace

RestWindows::RestWindows(Device& device, int64_t bytes) : device_(device), asked_(bytes / kAlign * kAlign) {
  if (bytes < 1024 && bytes != 0)
    throw InvalidArgument(fmt::format("{}: windows of {} bytes for state on the host; give at least 1024",
                                      device.label(), bytes));
}

RestWindows::~RestWindows() = default;

void RestWindows::announce(const RestState& state) {
  for (const Tensor& t : {state.values, state.scales})
    if (on_host(t)) {
      total_ += aligned(t.nbytes());
      on_host_ = true;
    }
  if (!state.quantized()) return;
  total_ += aligned(state.values.numel() * size_of(DType::f32));
  largest_ = std::max(largest_, kRoomOfBlocks);
}

void RestWindows::announce_together(const std::vector<Tensor>& tensors) {
  largest_ = std::max(largest_, bytes_on_host(tensors));
  on_host_ = on_host_ || bytes_on_host(tensors) > 0;
}

void RestWindows::allocate() {
  if (total_ == 0) return;
  const int64_t most = on_host_                            ? kLargest
                       : device_.kind() == DeviceKind::cpu ? kLargestOnCpu
                                                           : kLargestOnGpu;
  const int64_t asked = asked_ > 0 ? asked_ : std::clamp(total_ / 8 / kAlign * kAlign, kSmallest, most);
  bytes_ = std::max(largest_, std::min(asked, total_ + kSlack));
  if (total_ / bytes_ > kMostWindows)
    throw InvalidArgument(
        fmt::format("{}: {} bytes would pass through windows of {} bytes, more than {} in a step; "
                    "give larger ones",
                    device_.label(), total_, bytes_, kMostWindows));
  for (Window& w : windows_) {
    w.memory = Tensor::empty(device_, {bytes_}, DType::u8, MemoryClass::optimizer, "state window");
    if (!on_host_) return;
  }
  in_ = device_.make_stream("offload in", StreamPriority::high);
  out_ = device_.make_stream("offload out", StreamPriority::high);
  in_->wait(device_.compute().record());  // the zeros of the state, and what used the memory before
}

void RestWindows::begin_step(const Event& ready) {
  if (!in_) return;
  // Events of a step that failed carry its failure.
  for (Window& w : windows_) w.free = {};
  in_->wait(ready);
  in_->wait(out_->record());  // of a step that an exception has ended
}

void RestWindows::fetch_again() {
  if (in_) in_->wait(out_->record());
}

void RestWindows::end_step(Stream& compute) {
  if (out_) compute.wait(out_->record());
}

RestStep::~RestStep() {
  try {
    end();
  } catch (const std::exception&) {  // the next call on the failed stream throws it again
  }
}

Tensor make_state(Device& device, Place place, int64_t count, DType dtype, std::string_view key) {
  const Tensor t =
      Tensor::at(place, device, {count}, dtype, MemoryClass::optimizer, fmt::format("optimizer {}", key));
  ops::fill(device.compute(), t, 0);
  return t;
}

RestPass::RestPass(RestWindows* windows, Stream& compute, std::function<void()> issue, Tensor skip)
    : windows_(windows), compute_(compute), issue_(std::move(issue)), skip_(std::move(skip)) {}

int64_t RestPass::fit(std::initializer_list<RestState> states, int64_t wanted) {
  // Of what passes the window: bytes of an element, and tensors. Pieces end where vectors and blocks do.
  int64_t element = 0, count = 0, least = kLeast;
  for (const RestState& s : states) {
    if (on_host(s.values)) {
      element += size_of(s.values.dtype()) +
                 (s.quantized() ? 1 : 0);  // a block's scale has fewer bytes than the block
      count += s.quantized() ? 2 : 1;
    }
    if (!s.quantized()) continue;
    element += size_of(DType::f32);
    ++count;
    least = kLargestStateBlock;
  }
  if (count == 0) return wanted;
  const auto room = [&] { return (windows_->bytes_ - used_ - count * kAlign) / element; };
  if (used_ > 0 && room() < std::min(wanted, least)) close();
  const int64_t fits = std::min(wanted, room());
  // A piece's end is the next one's begin, in tensors that are not in the window, too.
  return fits < wanted && fits > least ? fits / least * least : fits;
}

void RestPass::make_room(const std::vector<Tensor>& tensors) {
  const int64_t bytes = bytes_on_host(tensors);
  if (used_ > 0 && used_ + bytes > windows_->bytes_) close();
}

Tensor RestPass::open(const Tensor& t, int64_t begin, int64_t count, bool stored) {
  if (!t.defined()) return t;
  const Tensor rest = t.flat(begin, begin + count);
  if (!on_host(t)) return rest;
  const Tensor piece = take(rest.nbytes()).as(t.dtype());
  ops::copy(*windows_->in_, piece, rest);
  if (stored) stored_.push_back({rest, piece});
  return piece;
}

Tensor RestPass::open(const RestState& state, int64_t begin, int64_t count, bool stored,
                      const Parameter& param, const Tensor& updates) {
  if (!state.quantized()) return open(state.values, begin, count, stored);
  const Tensor codes = open(state.values, begin, count, stored),
               scales = open(state.scales, begin / state.block, count / state.block, stored);
  const Tensor values = take(count * size_of(DType::f32)).as(DType::f32);
  for (const NoiseRun& run : noise_runs(param, begin, count, updates)) {
    const int64_t at = run.begin - begin;
    const BlockSegment segment{static_cast<uint8_t*>(codes.raw()) + at,
                               scales.data<float>() + at / state.block,
                               values.data<float>() + at,
                               run.count,
                               state.block,
                               state.code,
                               is_rounded_to_nearest(state.code) ? Noise{} : run.noise};
    read_.push_back(segment);
    if (stored) written_.push_back(segment);
  }
  return values;
}

Tensor RestPass::take(int64_t bytes) {
  RestWindows::Window& window = windows_->windows_[windows_->open_];
  if (used_ == 0 && windows_->in_) windows_->in_->wait(window.free);
  const int64_t begin = std::exchange(used_, used_ + aligned(bytes));
  return window.memory.flat(begin, begin + bytes);
}

void RestPass::finish() { close(); }

void RestPass::close() {
  const bool fetches = used_ > 0 && windows_->in_;
  if (fetches) compute_.wait(windows_->in_->record());
  if (!read_.empty()) ops::dequantize(compute_, std::exchange(read_, {}));
  issue_();
  if (!written_.empty()) ops::quantize(compute_, std::exchange(written_, {}), skip_);
  if (!fetches) {
    used_ = 0;
    return;
  }
  const Event computed = compute_.record();
  RestWindows::Window& window = windows_->windows_[windows_->open_];
  Stream& out = *windows_->out_;
  out.wait(computed);
  PendingReads& reads = windows_->device_.tier_reads();
  if (const uint64_t newest = reads.newest(); newest > 0 && !stored_.empty())
    out.submit({"offload wait", WorkKind::copy}, [&reads, newest, ranges = stored_](ExecutionContext&) {
      for (const Stored& s : ranges) reads.wait(newest, s.rest.raw(), s.rest.nbytes());
    });
  for (const Stored& s : stored_) ops::copy(out, s.rest, s.window);
  window.free = out.record();
  windows_->open_ = 1 - windows_->open_;
  used_ = 0;
  stored_.clear();
}

}  // namespace sherd
