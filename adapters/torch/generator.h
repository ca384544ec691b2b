// Random numbers of one rank.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <memory>

namespace sherd::torch {

namespace detail {
class DefaultsScope;
}

/// While it lives, random numbers on the CPU that this thread's operations draw (dropout, torch::randn(), the
/// functions of torch::nn::init) come from a generator of its own, and not from libtorch's default one, which all
/// threads share and which ranks that are threads would draw from in any order:
///
///     sherd::launch(4, [&](sherd::RankContext& rank) {
///       const sherd::torch::ThreadGenerator random(seed + static_cast<uint64_t>(rank.world->rank()));
///       ...
///
/// Numbers on a GPU come from libtorch's generator of that GPU. What names a generator itself keeps that. Scopes nest, and end in the opposite order on the thread that made them.
/// The numbers are those that the default generator would give after torch::manual_seed(seed).
class [[nodiscard]] ThreadGenerator {
 public:
  explicit ThreadGenerator(uint64_t seed);
  /// Of the CPU; it continues from its state.
  explicit ThreadGenerator(const at::Generator& generator);
  ~ThreadGenerator();
  ThreadGenerator(const ThreadGenerator&) = delete;
  ThreadGenerator& operator=(const ThreadGenerator&) = delete;

  /// To save and to load its state (get_state(), set_state()).
  const at::Generator& generator() const { return generator_; }

 private:
  at::Generator generator_;
  std::unique_ptr<detail::DefaultsScope> scope_;
};

}  // namespace sherd::torch
