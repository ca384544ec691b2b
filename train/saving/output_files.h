// Checks of output paths before a run begins.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include <sherd/checkpoint/weights.h>
#include <sherd/comm/bootstrap/bootstrap.h>

namespace sherd {

/// A path that a run is asked to write to.
struct OutputPath {
  enum class Kind {
    file,            // a regular file, there already or not
    stream,          // or a device or pipe
    weights,         // a file or a folder, as export_weights() takes it
    weights_folder,  // a folder, new or empty, with and without a slash at the end
    folder,          // of checkpoints: missing folders are created, below the last one that is there
  };
  /// Names it in messages: "--metrics".
  const char* flag;
  /// Empty: nothing is asked for.
  std::filesystem::path path;
  Kind kind = Kind::file;
  /// Of weights: what a folder that is not empty means.
  Existing existing = Existing::refuse;
};

/// Checks all of them; writes nothing. @throws IoError naming all that cannot be written.
void check_outputs(std::span<const OutputPath> outputs);

/// Whether this process has rank 0, which alone writes what is not a checkpoint, of a job that its processes
/// join as environment variables say; as far as those tell before the job is joined: true where they do not,
/// or where there is no job.
bool rank_0_is_here(const EnvironmentLookup& get = {});

}  // namespace sherd
