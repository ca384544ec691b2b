// Small checkpoints that a tag tells apart, saved and listed with every byte checked.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <sherd/base/error.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>

#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::test {

namespace fs = std::filesystem;

inline const std::string kTaggedHeader = "8 bytes ";

inline void put_file(FileSystem& files, const fs::path& path, const std::string& bytes) {
  const auto file = files.create_new(path);
  if (!file) throw IoError("taken: " + path.string());
  file->write(bytes.data(), static_cast<int64_t>(bytes.size()));
  file->sync();
  file->close();
}

/// Saves a checkpoint that holds `tag` (8 letters) in a file of each section; so many values of its model are
/// said not to be finite, and `loss` is that of an evaluation on the data "d".
inline fs::path save_tagged(CheckpointFolder& folder, FileSystem& files, int64_t step, const std::string& tag,
                            int64_t not_finite = 0, const std::string& loss = "") {
  const fs::path temporary = folder.temporary(step);
  Manifest manifest;
  manifest.training.step = step;
  if (!loss.empty())
    manifest.training.info = {{TrainingState::kEvalLoss, loss}, {TrainingState::kEvalData, "d"}};
  try {
    files.create_folder(temporary);
    for (const Section section : {Section::model, Section::optim}) {
      files.create_folder(temporary / name_of(section));
      const std::string path = std::string(name_of(section)) + "/file";
      put_file(files, temporary / path, kTaggedHeader + tag);
      manifest.tensors.push_back({"t", section, DType::u8, {8}, {{{{0}, {8}}, 0, 8}}});
      manifest.tensors.back().pieces[0].file = static_cast<int>(manifest.files.size());
      if (section == Section::model) manifest.tensors.back().pieces[0].not_finite = {not_finite, 0};
      manifest.files.push_back({path, 16, 8, checksum(kTaggedHeader.data(), 8), {checksum(tag.data(), 8)}});
    }
    return folder.commit(temporary, step, manifest);
  } catch (const IoError&) {
    folder.discard(temporary);
    throw;
  }
}

/// Tags of the committed checkpoints by name, every byte of them checked.
inline std::map<std::string, std::string> tags_in(const fs::path& folder) {
  std::map<std::string, std::string> tags;
  std::vector<UnusableCheckpoint> unusable;
  FileSystem& files = FileSystem::posix();
  for (const CommittedCheckpoint& found : list_checkpoints(folder, files, &unusable)) {
    const Manifest manifest =
        decode_manifest(read_whole(files, folder / found.name / "manifest.binpb", 9999));
    EXPECT_EQ(manifest.sequence, found.sequence);
    EXPECT_EQ(checkpoint_name(manifest.training.step), found.name);
    for (const CheckpointFile& file : manifest.files) {
      const std::string bytes = read_whole(files, folder / found.name / file.path, 16);
      EXPECT_EQ(bytes.substr(0, 8), kTaggedHeader);
      tags[found.name] = bytes.substr(8);
      EXPECT_EQ(checksum(tags[found.name].data(), 8), file.block_checksums[0]) << found.name << file.path;
    }
  }
  EXPECT_THAT(unusable, IsEmpty());
  return tags;
}

inline std::vector<std::string> temporaries(const fs::path& folder) {
  std::vector<std::string> names = FileSystem::posix().list(folder);
  std::erase_if(names, [](const std::string& name) { return !is_temporary_name(name); });
  return names;
}

inline std::string latest(const fs::path& folder) {
  std::string name = read_bytes(folder / "latest");
  EXPECT_TRUE(name.ends_with('\n')) << name;
  return name.substr(0, name.size() - 1);
}

inline bool any(const CommittedCheckpoint&) { return true; }

}  // namespace sherd::test
