// Model description of the tools: a JSON list of parameters.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sherd/kernels/device/dtype.h>
#include <sherd/kernels/device/shape.h>
#include <sherd/kernels/rest/rest.h>
#include <sherd/optim/routing.h>

namespace sherd::tools {

struct ParamEntry {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  Algorithm optimizer = Algorithm::adamw;
  std::string unit;
  /// Shared with another place in the model; listed once.
  bool tied = false;
  /// Rows of the matrices in a fused one, one below another; empty = one matrix.
  std::vector<int64_t> blocks;
  /// Form of its master weights; f32 unless dtype is bf16.
  Master master = Master::f32;
};

/// Reads [{"name", "shape", "dtype", "optimizer": "muon" | "adamw", "unit", "tied", "blocks", "master"}, ...] in
/// model order. "tied" (false), "blocks" and "master" (f32) may be left out. Every shape's product and the sum over the model fit
/// in int64.
/// @param source name of the input in messages.
/// @throws InvalidArgument, one message with every offender, 20 at most: input that is not JSON, or not such a list;
/// missing, unknown and wrong fields; negative sizes; sizes whose product overflows; duplicate names;
/// parameters of muon that are neither a matrix (2-D) nor a stack of matrices (3-D); blocks that do not add
/// up to the rows.
std::vector<ParamEntry> parse_params(std::string_view text, const std::string& source);

/// Reads a file. @throws IoError when it cannot be read.
std::vector<ParamEntry> read_params(const std::string& path);

}  // namespace sherd::tools
