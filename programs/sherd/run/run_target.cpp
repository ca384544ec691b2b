#include "run_target.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

#include <fmt/format.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/checkpoint/files/file_system.h>
#include <sherd/train/settings/saved_settings.h>

namespace sherd::tools {
namespace {

namespace io = google::protobuf::io;

const std::set<std::string, std::less<>> kSwitches = {"overwrite"};
const std::set<std::string, std::less<>> kRead = {
    "save",     "resume", "resume_parts", "init_weights",    "metrics", "ranks",  "batch", "grad_accum",
    "replicas", "tp",     "ep",           "expert_parallel", "context", "config", "comm",  "bootstrap"};

/// "resume_parts" of "--resume-parts" and "--resume-parts=all"; empty for words that are not flags.
std::string name_of_flag(std::string_view word) {
  if (!word.starts_with("--")) return "";
  std::string name(word.substr(2, word.find('=') == word.npos ? word.npos : word.find('=') - 2));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// Silent: the program itself says what is wrong with its file.
class Nobody : public io::ErrorCollector {
 public:
  void AddError(int, io::ColumnNumber, const std::string&) override {}
};

/// "name: value" of a config file, for values that are one word.
std::map<std::string, std::string, std::less<>> read_settings(const std::string& path) {
  constexpr int64_t kMaxBytes = 1 << 20;
  const std::string text = read_whole(FileSystem::posix(), path, kMaxBytes);
  std::map<std::string, std::string, std::less<>> values;
  io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
  Nobody nobody;
  io::Tokenizer tokens(&stream, &nobody);
  tokens.set_comment_style(io::Tokenizer::SH_COMMENT_STYLE);
  std::string name;
  bool colon = false;
  while (tokens.Next()) {
    const io::Tokenizer::Token& token = tokens.current();
    if (colon && !name.empty()) {
      std::string value = token.text;
      if (token.type == io::Tokenizer::TYPE_STRING) {
        value.clear();
        io::Tokenizer::ParseStringAppend(token.text, &value);
      }
      values[name] = value;
      name.clear();
      colon = false;
    } else if (token.text == ":") {
      colon = true;
    } else {
      name = token.type == io::Tokenizer::TYPE_IDENTIFIER ? token.text : "";
      colon = false;
    }
  }
  return values;
}

}  // namespace

RunTarget::RunTarget(std::vector<std::string> command) : command_(std::move(command)) {
  for (size_t i = 1; i < command_.size(); ++i) {
    const std::string name = name_of_flag(command_[i]);
    const size_t is = command_[i].find('=');
    if (kSwitches.contains(name)) values_[name] = "true";
    if (!kRead.contains(name)) continue;
    if (is != std::string::npos) {
      values_[name] = command_[i].substr(is + 1);
    } else if (i + 1 < command_.size()) {
      values_[name] = command_[++i];
    }
  }
  if (const std::string file = value("config"); !file.empty()) {
    in_file_ = read_settings(file);
    for (const auto& [name, text] : in_file_)
      if (kRead.contains(name) || kSwitches.contains(name)) values_.try_emplace(name, text);
  }
  if (!goes_on_in_save()) foreign_ = newest().sequence;
}

// Returns whether the command's first start resumes the newest checkpoint in save(), if any.
bool RunTarget::goes_on_in_save() const {
  if (value("overwrite") == "true") return false;
  const std::string from = resume(), parts = value("resume_parts");
  if (from.empty()) return true;  // command() adds it
  std::error_code missing;
  return std::filesystem::equivalent(from, save(), missing) && (parts.empty() || parts == "all");
}

std::string RunTarget::value(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? "" : found->second;
}

int64_t RunTarget::number(std::string_view name, int64_t otherwise) const {
  const std::string text = value(name);
  if (text.empty()) return otherwise;
  int64_t parsed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc() || end != text.data() + text.size() || parsed < 1)
    throw InvalidArgument(
        fmt::format("{}: {} = {}: must be a whole number from 1 on", command_[0], name, text));
  return parsed;
}

bool RunTarget::starts_without_mpi() const { return value("comm") == "nccl" && value("bootstrap") != "mpi"; }

RankRules RunTarget::rules() const {
  RankRules rules{.batch = has("batch") ? number("batch", 1) : 0,
                  .grad_accum = number("grad_accum", 1),
                  .replicas = number("replicas", 1),
                  .tp = number("tp", 1),
                  .ep = number("expert_parallel", number("ep", 1)),
                  .context = number("context", 1)};
  const std::string from = newest().sequence > 0 ? value("save") : resume();
  if (from.empty() || (has("batch") && has("grad_accum"))) return rules;
  try {
    const auto& info = saved_training(from).training.info;
    const auto config = info.find("config");
    if (config == info.end()) return rules;
    const auto json = read_json_or_null(config->second);
    if (!json.is_object()) return rules;
    if (!has("batch")) rules.batch = std::max<int64_t>(0, json.value("batch", int64_t{0}));
    if (!has("grad_accum")) rules.grad_accum = std::max<int64_t>(1, json.value("grad_accum", int64_t{1}));
  } catch (const std::exception&) {  // the program itself says what is wrong with its checkpoint
  }
  return rules;
}

RunTarget::Newest RunTarget::newest() const {
  const std::filesystem::path folder = save();
  FileSystem& files = FileSystem::posix();
  if (folder.empty() || files.kind(folder) != FileSystem::Kind::folder) return {};
  const auto all = list_checkpoints(folder, files);
  if (all.empty() || all.front().sequence <= foreign_) return {};
  return {step_of_checkpoint_name(all.front().name), all.front().sequence};
}

std::vector<std::string> RunTarget::command(int64_t ranks, bool restart) const {
  std::vector<std::string> words = command_;
  if (has("ranks")) words.insert(words.end(), {"--ranks", std::to_string(ranks)});
  const bool asked = !resume().empty() || value("overwrite") == "true";
  if (newest().sequence == 0 || (asked && !restart)) return words;
  for (size_t i = 1; i < words.size();) {
    const std::string name = name_of_flag(words[i]);
    const bool goes = name == "resume" || name == "resume_parts" || name == "init_weights";
    const bool with_value = kRead.contains(name) && words[i].find('=') == std::string::npos;
    const size_t end = std::min(i + (with_value ? 2 : 1), words.size());
    if (goes)
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i),
                  words.begin() + static_cast<std::ptrdiff_t>(end));
    else
      i = end;
  }
  words.insert(words.end(), {"--resume", save().string()});
  if (in_file_.contains("resume_parts")) words.insert(words.end(), {"--resume-parts", "all"});
  if (in_file_.contains("init_weights")) words.push_back("--init-weights=");
  return words;
}

}  // namespace sherd::tools
