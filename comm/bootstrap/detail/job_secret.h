// Secret that the processes of a job share, as the user gives it. Private to comm/.
#pragma once

#include <functional>
#include <string>

namespace sherd {

/// Longest secret, in bytes.
constexpr size_t kMostSecret = 4096;

/// The value of SHERD_JOB_SECRET, or the content of the file that SHERD_JOB_SECRET_FILE names, without the
/// newline at its end; empty when neither is set. `get` looks up a variable and returns null for an unset
/// one.
/// @throws InvalidArgument with the remedy: both are set; one is set and empty; the secret is empty or longer
/// than kMostSecret; the file cannot be read, is not a regular file, or other users may read or write it.
std::string job_secret(const std::function<const char*(const char*)>& get);

}  // namespace sherd
