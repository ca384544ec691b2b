// Paths given to `sherd ckpt`: checkpoints, folders of checkpoints, files of other programs.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>

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
  /// Save folder: sound checkpoints, newest first; unusable ones, which may be newer.
  std::vector<CommittedCheckpoint> committed;
  std::vector<UnusableCheckpoint> unusable;

  /// "2 of 5 are unusable: step_...: REASON; ...": empty when all are sound.
  std::string complaint() const;
};

/// Reads names and the first bytes of manifests only.
/// @throws IoError for a path that is missing or none of the above, with a list of these; NewerFormat.
Place find_place(const std::filesystem::path& path, FileSystem& files = FileSystem::posix());

/// Returns the checkpoint, folder or file to read: a save folder's newest.
/// @throws IoError for a save folder without a checkpoint; CorruptCheckpoint for one with an unusable checkpoint, which
/// may be the newest.
std::filesystem::path source_of(const Place& place);

/// Reader of a path, and its name in messages: "DIR/step_00000100 (the newest of 3)".
struct Source {
  CheckpointReader reader;
  std::string title;
  /// Number of checkpoints in a save folder; 0 for another path.
  size_t newest_of = 0;
};
/// Opens a path; prints Manifest::notes to `err`. @throws as find_place(), source_of() and
/// CheckpointReader::open().
Source open_source(const std::filesystem::path& path, std::ostream& err);

/// Optimizer state is recognized by its section or, in files of other programs, by its name ("optim.state.").
Section section_of(const Manifest& manifest, const CheckpointTensor& tensor);

}  // namespace sherd::tools
