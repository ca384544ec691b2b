// Random numbers of one rank.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <memory>

namespace sherd::torch {

namespace detail {
class DefaultsScope;
}

/// Scope with a generator of its own for this thread's random numbers on the CPU (dropout, torch::randn(),
/// the functions of torch::nn::init). Libtorch's default generator is shared by all threads; ranks that are
/// threads would draw from it in any order:
///
///     sherd::launch(4, [&](sherd::RankContext& rank) {
///       const sherd::torch::ThreadGenerator random(seed + static_cast<uint64_t>(rank.world->rank()));
///       ...
///
/// Numbers on a GPU come from libtorch's generator of that GPU. An operation that names a generator itself
/// uses that. Scopes nest, and end in the opposite order on the thread that made them. The numbers are those
/// of the default generator after torch::manual_seed(seed).
class [[nodiscard]] ThreadGenerator {
 public:
  explicit ThreadGenerator(uint64_t seed);
  /// `generator`: one of the CPU; numbers continue from its state.
  explicit ThreadGenerator(const at::Generator& generator);
  ~ThreadGenerator();
  ThreadGenerator(const ThreadGenerator&) = delete;
  ThreadGenerator& operator=(const ThreadGenerator&) = delete;

  /// Returns the generator, to save and load its state (get_state(), set_state()).
  const at::Generator& generator() const { return generator_; }

 private:
  at::Generator generator_;
  std::unique_ptr<detail::DefaultsScope> scope_;
};

}  // namespace sherd::torch
