// Functions of the golden files by the names of their cases.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <sherd/nn/nn.h>

namespace sherd::test {

/// Inputs, parameters and integers of a case.
struct GoldenArguments {
  std::vector<nn::Var> x;
  std::vector<Parameter> w;
  std::vector<Tensor> n;
};
using GoldenFunction = std::function<std::vector<nn::Var>(const GoldenArguments&)>;
using GoldenTable = std::map<std::string, GoldenFunction>;

/// Returns the functions of algebra.json.
const GoldenTable& algebra_functions();
/// Returns the functions of latent.json.
const GoldenTable& latent_functions();

}  // namespace sherd::test
