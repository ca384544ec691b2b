#include <sherd/comm/nccl/detail/window_buffers.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include <sherd/comm/core/communicator.h>
#include <sherd/kernels/random/random.h>

namespace sherd::nccl {
namespace {

constexpr std::string_view kNone = "no block: ";

}  // namespace

WindowBuffers::WindowBuffers(std::vector<Tensor> tensors, std::shared_ptr<WindowBlock> block, std::string why,
                             FindGroup find)
    : BufferSet(std::move(tensors)), block_(std::move(block)), find_(std::move(find)), why_(std::move(why)) {}

WindowBuffers::~WindowBuffers() {
  if (!block_) return;
  // In the order of share(), which is the same on all ranks: closing a window is collective.
  for (const auto& group : shared_) try {
      group->on_device([&] { group->handle.close_window(*block_); });
    } catch (const std::exception&) {  // of a launch that has failed, whose end closes it
    }
}

// A text that is equal on all ranks exactly when their blocks have one size and their tensors the same
// offsets, as symmetric windows need. Addresses themselves may differ.
std::string WindowBuffers::layout() const {
  if (!block_) return std::string(kNone) + why_;
  uint64_t digest = 0;
  for (const Tensor& t : tensors())
    digest = hash64(digest, fmt::format("{}", static_cast<const char*>(t.raw()) -
                                                  static_cast<const char*>(block_->data())));
  return fmt::format("{} bytes, cut as {:016x}", block_->bytes(), digest);
}

void WindowBuffers::share(Communicator& comm) {
  // A group of one rank moves no data between ranks.
  if (comm.size() == 1) return;
  auto group = find_(comm);
  if (!group)
    throw InvalidArgument(
        fmt::format("share() on rank {}: the communicator is not of the NCCL world that made the buffers; "
                    "share with its splits and clones",
                    comm.world_rank()));
  // Several communicators may use one handle; it gets one window.
  const auto same = [&](const auto& other) { return &other->handle == &group->handle; };
  if (std::any_of(shared_.begin(), shared_.end(), same)) return;
  // Recorded before the exchange: a second share() must not repeat it, even where no window is made.
  shared_.push_back(group);

  Session& session = *group->session;
  const std::string where = fmt::format("making a window of {} bytes (nccl.windows) on rank {}",
                                        block_ ? block_->bytes() : 0, session.world_rank());
  const Deadline deadline(group->timeout);
  // The number orders windows of a communicator and keeps their keys in the store apart.
  const int64_t number = group->handle.next_window();
  const auto prefix = [&](int64_t n) { return fmt::format("{}/window/{}", group->name, n); };
  const auto layouts = session.collect(prefix(number), static_cast<size_t>(group->rank), layout(),
                                       group->world_ranks, where, deadline);
  // All members have reached this window, so all have read the keys of the one before.
  session.store().erase(fmt::format("{}/{}", prefix(number - 1), group->rank));
  const auto without = [&](std::string why) {
    ++without_;
    if (why_.empty()) why_ = std::move(why);
  };
  // Every rank sees the same layouts and so takes the same decision, without a further exchange.
  for (size_t r = 0; r < layouts.size(); ++r) {
    if (layouts[r].starts_with(kNone))
      return without(fmt::format("rank {}: {}", group->world_ranks[r], layouts[r].substr(kNone.size())));
    if (layouts[r] != layouts.front())
      return without(fmt::format("the buffers of ranks {} and {} are of different sizes",
                                 group->world_ranks.front(), group->world_ranks[r]));
  }
  bool opened = false;
  // Collective: NCCL may refuse windows (topology, environment), on all ranks alike.
  group->on_device([&] { opened = group->handle.open_window(block_, where, deadline); });
  if (!opened) return without("NCCL makes none between these GPUs, or NCCL_WIN_ENABLE is 0");
  ++windows_;
}

std::string WindowBuffers::describe() const {
  if (!block_)
    return fmt::format("units' buffers: no symmetric windows, as {}; memory as without nccl.windows", why_);
  std::string text =
      fmt::format("units' buffers: {:.1f} MiB of NCCL's, in symmetric windows of {} communicator{}",
                  static_cast<double>(block_->bytes()) / (1 << 20), windows_, windows_ == 1 ? "" : "s");
  if (without_ > 0) text += fmt::format("; none for {}: {}", without_, why_);
  return text;
}

std::unique_ptr<BufferSet> make_window_buffers(const NcclApi& api, Device& device,
                                               std::span<const BufferSpec> specs, const WindowGroup& world,
                                               FindGroup find) {
  std::string why = why_no_windows(api);
  std::vector<Tensor> tensors;
  if (!why.empty()) {
    for (const BufferSpec& s : specs)
      tensors.push_back(Tensor::empty(device, {s.elements}, s.dtype, s.kind, s.name));
    return std::make_unique<WindowBuffers>(std::move(tensors), nullptr, std::move(why), std::move(find));
  }
  if (specs.empty()) return std::make_unique<BufferSet>(std::vector<Tensor>());
  int64_t bytes = 0;
  // Sizes are rounded as the allocator rounds them, so that tensors begin at aligned addresses.
  for (const BufferSpec& s : specs) bytes += Allocator::rounded(s.elements * size_of(s.dtype));
  const auto block = std::make_shared<WindowBlock>(api, bytes);
  const int64_t rest = block->bytes() - bytes;
  world.on_device([&] {
    for (const BufferSpec& s : specs)
      tensors.push_back(Tensor::from(block, device, {s.elements}, s.dtype, s.kind, s.name));
    // The rest of it is held, too.
    if (rest > 0)
      tensors.push_back(
          Tensor::from(block, device, {rest}, DType::u8, MemoryClass::scratch, "window granularity"));
  });
  return std::make_unique<WindowBuffers>(std::move(tensors), block, "", std::move(find));
}

}  // namespace sherd::nccl
