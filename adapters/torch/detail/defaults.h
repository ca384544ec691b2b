// Defaults of a thread for operations where a program has named nothing.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace sherd::torch::detail {

/// Libtorch has one default generator and one default device for the whole process, which ranks that are threads
/// share. While a scope of this kind lives, operations of its thread are handed the scope's in the place of an
/// argument `generator` (on the CPU) or `device` (where tensors are made of none) that was left out: a fallback of
/// libtorch's dispatcher fills it in, under a key that its own operations do not use. That makes each call of an
/// operation about a microsecond slower. Scopes nest, and end in the opposite order.
class [[nodiscard]] DefaultsScope {
 public:
  explicit DefaultsScope(const at::Generator& generator);
  explicit DefaultsScope(at::Device device);
  ~DefaultsScope();
  DefaultsScope(const DefaultsScope&) = delete;
  DefaultsScope& operator=(const DefaultsScope&) = delete;

  struct Values {
    std::optional<at::Generator> generator;
    std::optional<at::Device> device;
  };
  /// Of the scopes that this thread is in.
  static const Values& now();

 private:
  Values before_;
  c10::impl::IncludeDispatchKeyGuard heard_;
};

/// The generator that operations of this thread take now: a scope's, or else libtorch's default one.
at::Generator generator_now();

}  // namespace sherd::torch::detail
