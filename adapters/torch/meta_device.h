// Modules without values, on the meta device.
#pragma once

#include <memory>

namespace sherd::torch {

namespace detail {
class DefaultsScope;
}

/// While it lives, tensors that this thread makes without naming a device are on the meta device, which has no memory:
/// modules that are made meanwhile are described only, as if each of their tensors were made with torch::kMeta.
/// fully_shard() gives them their values, one module at a time, so that no rank ever holds the whole model.
///
///     std::optional<sherd::torch::MetaDevice> meta(std::in_place);
///     Net model;
///     meta.reset();
///     sherd::torch::fully_shard<BlockImpl>(*model, mesh);
///
/// What a constructor writes to its tensors is lost: see ParameterInit (reset_parameters.h).
class [[nodiscard]] MetaDevice {
 public:
  MetaDevice();
  ~MetaDevice();
  MetaDevice(const MetaDevice&) = delete;
  MetaDevice& operator=(const MetaDevice&) = delete;

 private:
  std::unique_ptr<detail::DefaultsScope> scope_;
};

}  // namespace sherd::torch
