// Paths given to `sherd ckpt`: checkpoints, folders of checkpoints, files of other programs.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/checkpoint/checkpoint_reader.h>

namespace sherd::tools {

struct Place {
  enum class Kind {
    checkpoint,    // has manifest.binpb or a committed checkpoint's name; nothing else of it is checked
    save_folder,   // holds checkpoints, or did
    plain_folder,  // of safetensors files
    file,
  };
  Kind kind = Kind::file;
  std::filesystem::path path;
  /// Of a save folder: sound checkpoints, newest first; those that are none, by name, and why.
  std::vector<CommittedCheckpoint> committed;
  std::vector<std::string> unusable, reasons;

  /// "2 of 5 are unusable: step_..., step_...": empty when all are sound.
  std::string complaint() const;
};

/// Reads names and the first bytes of manifests only.
/// @throws IoError for a path that is missing or nothing of the above, listing what was looked for.
Place find_place(const std::filesystem::path& path, FileSystem& files = FileSystem::posix());

/// The checkpoint, folder or file to read: a save folder's newest.
/// @throws IoError, CorruptCheckpoint for a save folder without a sound checkpoint.
std::filesystem::path source_of(const Place& place);

/// A reader of what a path means, and what to call it: "DIR/step_00000100 (the newest of 3)".
struct Source {
  CheckpointReader reader;
  std::string title;
  /// Checkpoints in the save folder that was named, 0 when another thing was.
  size_t newest_of = 0;
};
/// Mentions unusable checkpoints that were passed over on `err`. @throws as find_place(), source_of() and
/// CheckpointReader::open().
Source open_source(const std::filesystem::path& path, std::ostream& err);

/// Optimizer state is recognized by its section or, in files of other programs, by its name ("optim.state.").
Section section_of(const Manifest& manifest, const CheckpointTensor& tensor);

}  // namespace sherd::tools
