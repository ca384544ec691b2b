// First values of modules that were made on the meta device.
#pragma once

#include <torch/nn/module.h>

#include <functional>

namespace sherd::torch {

/// What a module of the program's own implements so that it can be made on the meta device. Modules of libtorch's have
/// their reset_parameters().
///
///     struct RmsNormImpl : torch::nn::Module, sherd::torch::Resettable {
///       explicit RmsNormImpl(int64_t dim) : weight(register_parameter("weight", torch::empty({dim}))) { reset_parameters(); }
///       void reset_parameters() override { torch::nn::init::ones_(weight); }
class Resettable {
 public:
  virtual ~Resettable() = default;
  /// Writes every element of the parameters and buffers that are registered in this module itself, and of no other ones.
  virtual void reset_parameters() = 0;
};

/// Gives the parameters and buffers that are registered in `module` itself their first values, which no constructor
/// could; for fully_shard(). Called for each module that has some on the meta device, when they have memory on the CPU
/// for the call; those of other modules have none. Every element has to be written. Recording is off, and random
/// numbers come from a generator of the thread's (generator.h) that is seeded anew for each module by
/// FullyShardOptions::seed and the module's name, so that values depend neither on ranks nor on other modules.
using ParameterInit = std::function<void(::torch::nn::Module& module)>;

/// The ParameterInit for modules that are Resettable, and for those of libtorch's that have parameters: what their
/// constructors do. (Of MultiheadAttention also what it does to its out_proj; the matrices of Transformer are libtorch's
/// own business: fully_shard() sees to them when it is given no ParameterInit.)
/// @returns false for others, which are left alone.
bool reset_parameters(::torch::nn::Module& module);

}  // namespace sherd::torch
