// Names of functions in errors.
#pragma once

#include <source_location>
#include <string>

namespace sherd::nn::detail {

/// Returns the name of the function that contains `at`, without its result, arguments and this namespace: "linear", "MyModel::forward".
std::string function_name(const std::source_location& at);

}  // namespace sherd::nn::detail
