// Defaults of a thread: arguments of operations that a program left out.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace sherd::torch::detail {

/// Default generator and device of this thread's operations. Libtorch has one of each for the whole process,
/// and ranks that are threads share them. A scope fills in a left-out argument `generator` (on the CPU) or
/// `device` (of operations that make tensors from none). It does so by a fallback of libtorch's dispatcher,
/// under a key that libtorch's own operations do not use. Each operation takes about 1 us longer. Scopes
/// nest, and end in the opposite order.
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
  /// Returns the values of this thread's scopes.
  static const Values& now();

 private:
  Values before_;
  c10::impl::IncludeDispatchKeyGuard heard_;
};

/// Returns the generator of this thread's operations: the scope's, or libtorch's default one.
at::Generator generator_now();

}  // namespace sherd::torch::detail
