#include <sherd/train/saving/output_files.h>

#include <unistd.h>

#include <filesystem>

#include <sherd/base/error.h>

#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

TEST(Outputs, AreLookedAtByTheirKindAndNothingIsWritten) {
  using Kind = OutputPath::Kind;
  const TemporaryFolder folder;
  const OutputPath bad[] = {{"--save", folder.write("file", "") + "/below", Kind::folder},
                            {"--metrics", folder.path(), Kind::stream},
                            {"--picture", "/dev/null", Kind::file},
                            {"--weights", folder / "file/w.safetensors", Kind::weights},
                            {"--folder", folder / "file", Kind::weights_folder},
                            {"--full", folder.path(), Kind::weights_folder},
                            {"--none", "", Kind::file}};
  EXPECT_THAT(message_of<IoError>([&] { check_outputs(bad); }),
              AllOf(HasSubstr("--save " + (folder / "file/below") + ": " + (folder / "file") +
                              " exists and is not a folder"),
                    HasSubstr("--metrics"), HasSubstr("--picture /dev/null"),
                    HasSubstr("--weights " + (folder / "file/w.safetensors")),
                    HasSubstr("--folder " + (folder / "file") + ": it exists and is not a folder"),
                    HasSubstr("this folder is not empty"), Not(HasSubstr("--none"))));
  const OutputPath good[] = {
      {"--save", folder / "new/run", Kind::folder},       {"--metrics", "/dev/null", Kind::stream},
      {"--picture", folder / "a/loss.svg", Kind::file},   {"--weights", folder / "b/weights/", Kind::weights},
      {"--folder", folder / "out", Kind::weights_folder}, {"--slash", folder / "out/", Kind::weights_folder}};
  check_outputs(good);
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a")) << "parents are made";
  EXPECT_TRUE(std::filesystem::is_directory(folder / "b"));
}

TEST(Outputs, AFolderThatMayNotBeWrittenToIsNamed) {
  if (::geteuid() == 0) GTEST_SKIP() << "root writes everywhere";
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "closed");
  std::filesystem::permissions(folder / "closed", std::filesystem::perms::owner_read);
  const std::string kept = folder.write("kept", "");
  std::filesystem::permissions(kept, std::filesystem::perms::owner_read);
  const OutputPath outputs[] = {{"--save", folder / "closed", OutputPath::Kind::folder},
                                {"--loss-svg", kept}};
  EXPECT_THAT(message_of<IoError>([&] { check_outputs(outputs); }),
              AllOf(HasSubstr("closed is not a folder that can be written to"), HasSubstr("--loss-svg")));
}

}  // namespace
}  // namespace sherd
