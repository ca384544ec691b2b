// Initial values of modules that were made on the meta device.
#pragma once

#include <torch/nn/module.h>

#include <functional>

namespace sherd::torch {

/// Interface of a program's own modules that may be made on the meta device. Modules of libtorch have their
/// reset_parameters().
///
///     struct RmsNormImpl : torch::nn::Module, sherd::torch::Resettable {
///       explicit RmsNormImpl(int64_t dim) : weight(register_parameter("weight", torch::empty({dim}))) { reset_parameters(); }
///       void reset_parameters() override { torch::nn::init::ones_(weight); }
class Resettable {
 public:
  virtual ~Resettable() = default;
  /// Writes every element of the parameters and buffers that are registered in this module itself, and no
  /// others.
  virtual void reset_parameters() = 0;
};

/// Gives the parameters and buffers that are registered in `module` itself their initial values, instead of a
/// constructor; for fully_shard(). Called for each module that has some on the meta device. They have memory
/// on the CPU for the call; those of other modules have none. Every element has to be written. Recording is
/// off. Random numbers come from a generator of the thread (generator.h). It is seeded for each module by
/// RootOptions::seed and the module's name, so that values depend neither on ranks nor on other
/// modules.
using ParameterInit = std::function<void(::torch::nn::Module& module)>;

/// ParameterInit of Resettable modules and of libtorch's modules with parameters: makes the values of their
/// constructors. For MultiheadAttention this includes its out_proj. The matrices of Transformer are set by
/// fully_shard() when it has no ParameterInit.
/// @returns false for other modules, which it does not change.
bool reset_parameters(::torch::nn::Module& module);

}  // namespace sherd::torch
