// Names of functions in errors.
#pragma once

#include <source_location>
#include <string>

namespace sherd::nn::detail {

/// The function that `at` is in, without its result, arguments and this namespace: "linear", "MyModel::forward".
std::string function_name(const std::source_location& at);

}  // namespace sherd::nn::detail
