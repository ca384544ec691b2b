// Secret that the processes of a job share, as the user gives it. Private to comm/.
#pragma once

#include <functional>
#include <string>

namespace sherd {

/// In bytes.
constexpr size_t kMostSecret = 4096;

/// What SHERD_JOB_SECRET says, or the content of the file that SHERD_JOB_SECRET_FILE names, without the
/// line's end; empty when neither is set. `get` looks up a variable, null when it is not there.
/// @throws InvalidArgument with the remedy: both are set, one is set and empty, the secret is empty or longer
/// than kMostSecret, the file cannot be read, is no regular file, or somebody else may read or write it.
std::string job_secret(const std::function<const char*(const char*)>& get);

}  // namespace sherd
