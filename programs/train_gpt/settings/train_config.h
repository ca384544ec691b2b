// Configuration of one run of train_gpt.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "settings_values.h"

namespace train_gpt {

struct ModelFiles;  // model/model_source.h

/// The folder of C++ standard library headers that holds `vector`, for the compiler that built this program.
std::string default_data_folder();

/// The settings that --strategy auto chooses, but those that are given.
inline constexpr const char* kChosen[] = {"strategy", "layout", "prefetch", "recompute"};

/// The settings of a run, and what parse_config() derives from them. An empty file name means "no such file".
struct TrainConfig : Settings {
  TrainConfig() { data = default_data_folder(); }

  // config.json that the run follows, and its source; not a flag, see choose_model_text(). Empty: --model's.
  std::string model_text;
  std::string model_from;

  /// Content of --model's folder, read before the run by with_model_files(); not a setting. Null: it is read
  /// when needed.
  std::shared_ptr<const ModelFiles> files = nullptr;

  /// Those of kChosen that the run chooses before it starts; not a setting. Empty without --strategy auto.
  std::vector<std::string> chosen;

  /// Returns whether weights come from the checkpoint of --resume, and not from the source of first weights.
  bool resumes_weights() const { return !resume.empty() && resume_parts != sherd::ResumeParts::optimizer; }
  /// Returns whether the run trains. A run that does not has an optimizer only for --save or --explain-plan.
  bool trains() const { return steps > 0 && !eval_only && !sample_only; }
  /// Returns the start of generated text: a model continues at least one byte.
  std::string start_of_text() const { return prompt.empty() ? "\n" : prompt; }
  /// Bytes of text to generate.
  int64_t sample_bytes() const { return sample_only && sample == 0 ? 256 : sample; }
  /// Returns whether the data are token files, not text.
  bool has_tokens() const { return !tokens.empty() || !sft.empty(); }
  /// Ranks with different sequences: all but those that share them, tensor- or context-parallel.
  int64_t data_ranks() const { return ranks / (tp * context); }
  /// Windows that a rank computes at once.
  int64_t microbatch() const { return batch / (data_ranks() * grad_accum); }
  /// Tokens of them, of the longest slices.
  int64_t rows_of_rank() const { return microbatch() * ((seq + context - 1) / context); }
  /// The step that this run ends with.
  int64_t last_step() const { return stop_at > 0 && stop_at < steps ? stop_at : steps; }

  bool operator==(const TrainConfig&) const = default;
};

/// The settings as JSON text; bytes of paths that are not UTF-8 are replaced.
std::string config_text(const TrainConfig& config);

/// The flags' names with underscores, in the order of --help.
nlohmann::ordered_json to_json(const TrainConfig& config);

}  // namespace train_gpt
