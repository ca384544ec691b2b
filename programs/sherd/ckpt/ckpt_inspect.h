// `sherd ckpt inspect`: content of a checkpoint, by module and by rank.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "ckpt_source.h"
#include "console.h"

namespace sherd::tools {

struct InspectOptions {
  std::filesystem::path path;
  bool json = false;
  /// Every tensor, not only modules; long texts and lists whole.
  bool tensors = false;
};

/// Reads the manifest or the headers, no tensor data.
void inspect(const InspectOptions& options, const Console& console);

/// Tensors of one section.
struct SectionTotals {
  int64_t tensors = 0, elements = 0, bytes = 0;
};
SectionTotals totals_of(const Manifest& manifest, Section section);

/// Returns the world rank (from 0) that wrote a file, by the file's name; nothing for names of other
/// programs.
std::optional<int> rank_of(const std::string& path);

/// Content of one rank, or of one file of unknown rank.
struct HolderTotals {
  std::optional<int> rank;
  std::string path;  // of the (first) file
  int64_t files = 0, pieces = 0, bytes = 0;
};
/// Ranks in order, then the files of unknown rank.
std::vector<HolderTotals> holders_of(const Manifest& manifest);

/// "blocks.0" of "blocks.0.qkv.weight", "tok" of "tok.weight", "" of "scale": up to the first number, or all
/// but the last part. Of optimizer state: of the parameter's name.
std::string module_of(Section section, const std::string& name);

/// One JSON object, described by `sherd ckpt inspect --help` (kInspectJsonHelp). Memory does not grow with
/// the number of tensors.
void write_inspect_json(std::ostream& out, const Source& source);
extern const char* const kInspectJsonHelp;

}  // namespace sherd::tools
