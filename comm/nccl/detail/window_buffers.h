// Communicator::make_buffers() with windows. Private to comm/nccl.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sherd/comm/core/buffers.h>
#include <sherd/comm/nccl/detail/handle.h>
#include <sherd/comm/nccl/detail/windows.h>

namespace sherd::nccl {

/// Communicator and session that windows are made on.
struct WindowGroup {
  std::shared_ptr<Session> session;
  Handle& handle;
  std::string name;
  std::vector<int> world_ranks;
  int rank;
  std::chrono::milliseconds timeout;
  /// Runs a function where the GPU is current, and waits for it.
  std::function<void(const std::function<void()>&)> on_device;
};
/// Finds the WindowGroup of a communicator; null for one of another backend.
using FindGroup = std::function<std::shared_ptr<const WindowGroup>(Communicator&)>;

class WindowBuffers final : public BufferSet {
 public:
  /// `block` null: the buffers are of the device's own memory, because of `why`.
  WindowBuffers(std::vector<Tensor> tensors, std::shared_ptr<WindowBlock> block, std::string why,
                FindGroup find);
  ~WindowBuffers() override;

  void share(Communicator& comm) override;
  std::string describe() const override;

 private:
  /// Returns the position of each buffer in the block, as a text that is equal on all ranks of a window.
  std::string layout() const;

  const std::shared_ptr<WindowBlock> block_;
  const FindGroup find_;
  std::vector<std::shared_ptr<const WindowGroup>> shared_;  // with or without a window
  int windows_ = 0, without_ = 0;
  std::string why_;  // the first reason for a buffer without a window
};

/// Makes the buffers of `specs`, in one block of NCCL's where it has windows.
std::unique_ptr<BufferSet> make_window_buffers(const NcclApi& api, Device& device,
                                               std::span<const BufferSpec> specs, const WindowGroup& world,
                                               FindGroup find);

}  // namespace sherd::nccl
