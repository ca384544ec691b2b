// The program that `sherd run` starts: what of its command line matters to a restart.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rank_choice.h"

namespace sherd::tools {

/// A command whose flags are train_gpt's, by name: --save, --resume, --resume-parts, --init-weights,
/// --overwrite,
/// --metrics, --ranks, --batch, --grad-accum, --replicas, --tp, --expert-parallel, --comm and --bootstrap, each "--flag value" or
/// "--flag=value", the last of equal ones; and --config, a file of Protobuf text with the same names, which
/// flags win over. Other flags are passed on unread. Any program that understands them can be run.
class RunTarget {
 public:
  /// @param command program and arguments, not empty.
  /// @throws IoError when the file of --config cannot be read, InvalidArgument when a number is none.
  explicit RunTarget(std::vector<std::string> command);

  /// The folder of --save; empty: the program saves nothing, and each restart begins at step 0.
  std::filesystem::path save() const { return value("save"); }
  /// The file of --metrics; empty: none.
  std::filesystem::path metrics() const { return value("metrics"); }
  /// The command's own --resume; empty: it has none.
  std::string resume() const { return value("resume"); }
  /// Returns whether its ranks find each other by variables of the environment alone: --comm nccl, without --bootstrap mpi.
  bool starts_without_mpi() const;
  /// Returns the rules for splitting the command's work. A batch that it does not name is taken from the
  /// newest checkpoint of this run, or of --resume, as the program does.
  RankRules rules() const;
  /// The newest committed checkpoint of this run in save(): its step, and its sequence number; 0 and 0
  /// without one. Checkpoints that were there when this object was made are this run's only when the command,
  /// too, resumes the newest of them with all its parts; not with --overwrite, nor with --resume for one of
  /// them, or for another folder, nor with --resume-parts.
  struct Newest {
    int64_t step = 0;
    uint64_t sequence = 0;
  };
  Newest newest() const;
  /// The command line of a start. The first start resumes the newest checkpoint in save() when the command
  /// has neither
  /// --resume nor --overwrite. Later ones (`restart`) resume it whenever save() holds a checkpoint of this
  /// run, and no other: --resume, --resume-parts and --init-weights of the command are left out. Until then
  /// these stay as the command has them. A number of ranks in the command becomes `ranks`.
  std::vector<std::string> command(int64_t ranks, bool restart) const;

 private:
  bool has(std::string_view name) const { return values_.contains(name); }
  std::string value(std::string_view name) const;
  bool goes_on_in_save() const;
  int64_t number(std::string_view name, int64_t otherwise) const;

  std::vector<std::string> command_;
  std::map<std::string, std::string, std::less<>> values_;  // by name, with underscores
  std::map<std::string, std::string, std::less<>> in_file_;
  uint64_t foreign_ = 0;  // checkpoints up to this sequence number are another run's
};

}  // namespace sherd::tools
