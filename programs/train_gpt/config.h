// What one run of train_gpt is asked to do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <sherd/kernels/device/dtype.h>

namespace train_gpt {

struct ModelFiles;  // model_source.h

/// The folder of C++ standard library headers that holds `vector`, for the compiler that built this program.
std::string default_data_folder();

/// Every flag but --config, with its default, and nothing else but `files`; flags are spelled with dashes.
/// Words such as `strategy` are checked here and hold the canonical spelling. An empty file name means "no
/// such file".
struct TrainConfig {
  // Data.
  std::string data = default_data_folder();
  std::string tokens;
  std::string token_format = "auto";
  std::string valid_tokens;
  std::string order = "auto";
  int64_t seq = 128;
  int64_t batch = 16;
  int64_t grad_accum = 1;
  // Ranks and sharding.
  int64_t ranks = 1;
  int64_t replicas = 1;
  int64_t tp = 1;
  bool sequence_parallel = false;
  std::string strategy = "optim_grads_params";
  std::string outer = "no_shard";
  std::string layout = "ragged";
  int64_t bucket_size = 40'000'000;
  bool reshard_after_forward = true;
  int64_t prefetch = 1;
  std::string recompute = "none";
  // Model. Of a --model, dim, layers, heads, experts and expert_top_k are its own.
  std::string model;
  bool from_scratch = false;
  bool strict_weights = false;
  int64_t dim = 128;
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t experts = 0;
  int64_t expert_parallel = 1;
  int64_t expert_top_k = 2;
  double moe_aux = 0.01;
  uint64_t seed = 0;
  std::string init_weights;
  // Training.
  std::string optimizer = "adamw";
  int64_t steps = 100;
  int64_t stop_at = 0;
  double lr = 3e-3;
  std::string lr_schedule = "constant";
  int64_t warmup = 0;
  std::optional<double> min_lr;  // none: lr / 10
  int64_t decay_steps = 0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-8;
  double weight_decay = 0.1;
  double grad_clip = 1.0;
  bool skip_non_finite = true;
  int64_t max_skipped_steps = 10;
  std::string precision = "fp32";
  std::string route;
  // Guards and stopping.
  double loss_spike = 12;
  int64_t verify_step = 0;
  int64_t check_replicas = 0;
  double grace = 0;
  std::string max_wall;
  // Muon.
  std::string muon_mode = "auto";
  bool muon_allow_inexact = false;
  std::string ns_form = "standard";
  std::string ns_coefficients = "jordan";
  int64_t ns_steps = 0;
  std::string ns_restart;
  std::string orthogonalizer = "newton_schulz";
  double muon_momentum = 0.95;
  std::string muon_scale = "match_rms_adamw";
  double muon_scale_factor = 1;
  std::string muon_decay = "decoupled";
  std::string muon_payload = "fp32";
  std::string muon_working = "fp32";
  std::string muon_tensor = "duplicated";
  int64_t muon_transient = 0;
  bool explain_plan = false;
  // Machine.
  std::string device = "cpu";
  std::string comm = "local";
  std::string bootstrap = "env";
  bool nccl_exact_order = false;
  bool mpi_library_order = false;
  bool nccl_check_calls = false;
  bool nccl_register_buffers = false;
  bool nccl_windows = false;
  bool tf32 = false;
  std::string symmetric_products = "blocks";
  std::string kernels = "cpu";
  int64_t threads = 0;
  int64_t memory_limit = 0;
  int64_t max_queued = 16'384;
  double comm_timeout = 300;
  std::string flight_recorder;
  // Checkpoints.
  std::string save;
  int64_t save_every = 0;
  int64_t keep = 0;
  bool async_save = false;
  std::string resume;
  std::string resume_parts = "all";
  bool allow_new_state = false;
  bool overwrite = false;
  std::string save_failure = "warn";
  std::string save_retry = "10m";
  // Output.
  int64_t eval_every = 0;
  std::optional<int64_t> eval_windows;  // none: see evaluation_windows()
  std::string metrics;
  std::string log_dir;
  bool measure_peak = true;
  std::string loss_svg;
  std::string trace;
  std::string timeline;
  int64_t trace_steps = 2;
  std::string export_weights;
  std::string export_dtype = "fp32";
  std::string export_hf;
  std::string tokenizer;
  std::string prompt_tokens;
  bool quiet = false;
  // Evaluation and sampling.
  bool eval_only = false;
  bool sample_only = false;
  int64_t sample = 0;
  std::string prompt;
  double temperature = 0.7;
  double top_p = 1;

  // Not of flags: the config.json that the run follows, and where it is from; see choose_model_text(). Empty:
  // --model's.
  std::string model_text;
  std::string model_from;

  /// What was read of --model's folder before the run, by with_model_files(): no setting. Null: it is read
  /// when it is needed.
  std::shared_ptr<const ModelFiles> files = nullptr;

  /// Whether weights come from the checkpoint of --resume, and not from where first weights come from.
  bool resumes_weights() const { return !resume.empty() && resume_parts != "optimizer"; }
  /// Whether anything is trained; otherwise there is no optimizer, unless --save or --explain-plan asks for one.
  bool trains() const { return steps > 0 && !eval_only && !sample_only; }
  /// What generated text begins with: a model goes on from at least one byte.
  std::string start_of_text() const { return prompt.empty() ? "\n" : prompt; }
  /// Bytes of text to generate.
  int64_t sample_bytes() const { return sample_only && sample == 0 ? 256 : sample; }
  /// Ranks with different data: all but those that share a batch tensor-parallel.
  int64_t data_ranks() const { return ranks / tp; }
  /// The step that this run ends with.
  int64_t last_step() const { return stop_at > 0 && stop_at < steps ? stop_at : steps; }

  bool operator==(const TrainConfig&) const = default;
};

/// What the command line asks for: a run or, when `help` is set (--help, --version), that text on stdout and
/// nothing else.
struct CommandLine {
  TrainConfig config;
  std::optional<std::string> help;
  /// Where --comm auto was given, config.comm is what that chose, and this a line that says why.
  std::string comm_choice = {};
  /// Settings that are no defaults and come from the checkpoint of --resume, as flags: "--dim 36".
  std::vector<std::string> inherited;
  /// Lines on a --model that is not as the checkpoint of --resume has it, for a program to print once.
  std::vector<std::string> notes;
};

/// Defaults, overridden by the run that saved the checkpoint of --resume (inherited_settings()), overridden by the
/// --config file, overridden by flags. The last of equal flags counts. A checkpoint that cannot be read is no error
/// here: loading it says what is wrong.
/// @throws sherd::InvalidArgument naming *all* unusable flags and values, each with its remedy, or all errors
/// of the file with line and column; sherd::IoError when the file cannot be read. Prints nothing.
CommandLine parse_config(int argc, const char* const* argv);

/// fp32, bf16 or fp16, as flags spell them.
sherd::DType dtype_named(std::string_view word);

/// The same as JSON text; bytes of paths that are not UTF-8 are replaced.
std::string config_text(const TrainConfig& config);

/// The flags' names with underscores, in the order of --help.
nlohmann::ordered_json to_json(const TrainConfig& config);

}  // namespace train_gpt
