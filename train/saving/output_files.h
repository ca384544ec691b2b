// Checks of output paths before a run begins.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include <sherd/checkpoint/weights.h>
#include <sherd/comm/bootstrap/bootstrap.h>

namespace sherd {

/// Output path of a run.
struct OutputPath {
  enum class Kind {
    file,            // a regular file, there already or not
    stream,          // or a device or pipe
    weights,         // a file or a folder, as export_weights() takes it
    weights_folder,  // a folder, new or empty, with and without a slash at the end
    folder,          // of checkpoints: missing folders are created
  };
  /// Name in messages: "--metrics".
  const char* flag;
  /// Empty: no output.
  std::filesystem::path path;
  Kind kind = Kind::file;
  /// weights: handling of a folder that is not empty.
  Existing existing = Existing::refuse;
};

/// Checks all of them; writes nothing. @throws IoError naming all that cannot be written.
void check_outputs(std::span<const OutputPath> outputs);

/// Returns whether this process has rank 0 of a job that its processes join by environment variables; only
/// rank 0 writes outputs other than checkpoints. The job is not joined yet: true where the variables do not
/// say, or without a job.
bool rank_0_is_here(const EnvironmentLookup& get = {});

}  // namespace sherd
