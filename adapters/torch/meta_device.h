// Modules without values, on the meta device.
#pragma once

#include <memory>

namespace sherd::torch {

namespace detail {
class DefaultsScope;
}

/// Scope in which this thread makes tensors on the meta device unless they name a device. The meta device has
/// no memory: modules made in the scope are described only, as if each tensor were made with torch::kMeta.
/// fully_shard() gives them values, one module at a time, so that no rank ever holds the unsharded model.
///
///     std::optional<sherd::torch::MetaDevice> meta(std::in_place);
///     Net model;
///     meta.reset();
///     sherd::torch::fully_shard<BlockImpl>(*model, mesh);
///
/// Values that a constructor writes to its tensors are lost: see ParameterInit (reset_parameters.h).
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
