#include "train_gpt/model/model_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <system_error>

#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_object.h>
#include <sherd/base/error.h>
#include <sherd/base/printable.h>
#include <sherd/checkpoint/files/detail/links.h>
#include <sherd/checkpoint/format/manifest.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/fsdp/name_pattern.h>
#include <sherd/nn/hf/adapter_folder.h>
#include <sherd/nn/models/presets.h>
#include <sherd/train/settings/saved_settings.h>

#include "train_gpt/settings/launch_flags.h"
#include "train_gpt/settings/run_options.h"

namespace train_gpt {

namespace nn = sherd::nn;
namespace fs = std::filesystem;
namespace {

nn::ModelDescription byte_gpt(const TrainConfig& c) {
  return {.family = nn::ModelFamily::byte_gpt,
          .vocab = kBytes,
          .dim = c.dim,
          .layers = c.layers,
          .heads = c.heads,
          .kv_heads = c.heads,
          .head_dim = c.dim / c.heads,
          .hidden = 4 * c.dim,
          .positions = c.seq,
          .mixture = {.experts = c.experts,
                      .top_k = c.expert_top_k,
                      .hidden = 4 * c.dim,
                      .normalise = c.expert_top_k > 1,  // else all gates would be 1
                      .balance = c.moe_aux}};
}

// Returns the files of a folder besides weights, with the configuration that the run follows: for models
// without the folder's weights.
std::map<std::string, std::string> files_beside_weights(const ModelSource& source) {
  std::map<std::string, std::string> files;
  if (!source.folder.empty()) files = sherd::StoredFolder::files_beside_weights(source.folder);
  files["config.json"] = source.text;
  // A checkpoint has it on one line; transformers writes it like this.
  if (source.folder_differs || source.folder.empty())
    files["config.json"] = sherd::parse_object(source.text, source.config.source).dump(2, ' ', true) + "\n";
  return files;
}

// Equal on all ranks, but for what rank 0 alone writes: `first`.
sherd::ExportOptions export_options(const TrainConfig& c, const ModelSource& source, bool first) {
  sherd::ExportOptions options;
  if (first && !source.folder.empty())
    for (const std::string& name : sherd::StoredFolder::links_outside(source.folder))
      warn(fmt::format("--export-hf {}: leaves out '{}' of --model's folder, a link to a file outside of it",
                       c.export_hf, sherd::printable(name)));
  if (!source.folder.empty() && !source.folder_differs && !c.from_scratch) {
    options.allow_unexpected = !c.strict_weights;
    if (first) options.like = sherd::StoredFolder::open(source.folder);
    return options;
  }
  options.dtype = source.config.dtype.value_or(sherd::DType::f32);
  if (first) options.files = files_beside_weights(source);
  return options;
}

std::shared_ptr<const sherd::Tokenizer> tokenizer_of(const TrainConfig& c, const ModelSource& source) {
  if (!c.tokenizer.empty()) return sherd::Tokenizer::load(c.tokenizer);
  const fs::path own = source.folder / "tokenizer.json";
  const bool there = !source.folder.empty() && fs::exists(own);
  if (there) sherd::require_inside(source.folder, "tokenizer.json");
  return there ? sherd::Tokenizer::load(own) : nullptr;
}

// Returns the tokens of --prompt, special tokens of the tokenizer's template included.
std::vector<int32_t> encoded_prompt(const TrainConfig& c, const sherd::Tokenizer* tokenizer, int64_t vocab) {
  const auto refuse = [](const std::string& why) {
    throw sherd::InvalidArgument(
        fmt::format("--prompt: {}, or the text's tokens with --prompt-tokens LIST", why));
  };
  if (!tokenizer)
    refuse(fmt::format("--model {} has no tokenizer.json; give one with --tokenizer FILE", c.model));
  std::vector<int32_t> tokens;
  try {
    tokens = tokenizer->encode(c.prompt);
  } catch (const sherd::Error& e) {
    refuse(fmt::format("{}; give another --tokenizer FILE", e.what()));
  }
  if (tokens.empty()) refuse("the tokenizer makes no tokens of it; give a longer text");
  if (const int32_t largest = std::ranges::max(tokens); largest >= vocab)
    refuse(fmt::format(
        "the tokenizer makes the token {} of it, and --model {} has {} tokens; give the model's own "
        "with --tokenizer FILE",
        largest, c.model, vocab));
  return tokens;
}

// Whether it is a name of the Hugging Face Hub, ORG/NAME.
bool is_hub_name(const std::string& model) {
  const auto is_part = [](std::string_view part) {
    return !part.empty() && part.front() != '.' && part.front() != '~' &&
           std::ranges::all_of(
               part, [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '_' || c == '-'; });
  };
  const std::string_view text = model;
  const size_t slash = text.find('/');
  return slash != text.npos && is_part(text.substr(0, slash)) && is_part(text.substr(slash + 1));
}

std::string small_letters(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Refuses what is neither a model's folder nor a published shape.
void require_model(const std::string& model) {
  const auto refuse = [&](const std::string& why) {
    throw sherd::InvalidArgument(fmt::format("--model {}: {}", model, why));
  };
  const std::vector<std::string> presets = nn::preset_names();
  if (is_absent_folder(model)) {
    std::error_code none;  // an existing folder before the slash: a path with a typing error
    if (is_hub_name(model) && !fs::is_directory(fs::path(model).parent_path(), none))
      refuse(
          fmt::format("no such folder, and nothing is downloaded; run `hf download {} --local-dir {}`, then "
                      "give --model {}",
                      model, fs::path(model).filename().string(), fs::path(model).filename().string()));
    if (const std::string small = small_letters(model); std::ranges::count(presets, small) > 0)
      refuse(fmt::format("no such folder, and no published shape; did you mean {}?", small));
    refuse(
        fmt::format("no such folder, and no published shape; these are known: {}", fmt::join(presets, ", ")));
  }
  const fs::path path = model;
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored))
    refuse(fmt::format("a file; name the folder that it is in, --model {}",
                       path.has_parent_path() ? path.parent_path().string() : "."));
  if (!fs::is_directory(path, ignored) || fs::exists(path / "config.json", ignored)) return;
  if (fs::exists(path / "manifest.binpb", ignored) || sherd::has_checkpoints(path))
    refuse(fmt::format("checkpoints of a run, not a model's folder; give --resume {}", model));
  refuse(
      "the folder has no config.json; name one with config.json and .safetensors files, as transformers' "
      "save_pretrained() writes it");
}

// Returns the path of the weights that training begins with; empty: they are random.
fs::path stored_weights(const TrainConfig& c) {
  if (!c.resumes_weights()) return first_weights(c);
  try {
    return sherd::saved_training(c.resume).checkpoint;
  } catch (const sherd::Error&) {  // reported by resume()
    return {};
  }
}

}  // namespace

nn::ModelDescription description_of(const TrainConfig& c) {
  if (c.model.empty()) return byte_gpt(c);
  const ModelSource source = model_source(c);
  nn::ModelDescription d = source.config.description;
  d.mixture.balance = c.moe_aux;
  d.mixture.bias_speed = c.moe_bias_speed;
  if (c.mtp_weight > 0) d.mtp_layers = source.config.mtp_layers;
  return d;
}

bool is_absent_folder(const std::string& model) {
  const std::vector<std::string> names = nn::preset_names();
  return !fs::exists(model) && std::find(names.begin(), names.end(), model) == names.end();
}

ModelSource model_source(const std::string& model) {
  require_model(model);
  if (fs::exists(model)) {
    std::string text = sherd::hf::read_model_text(model);
    return {sherd::hf::parse_model_config(text, (fs::path(model) / "config.json").string()), model,
            std::move(text)};
  }
  const nn::ModelDescription d = nn::preset(model);
  return {{.source = model, .description = d}, {}, sherd::hf::model_config_text(d, sherd::DType::f32)};
}

ModelSource model_source(const TrainConfig& c) {
  if (c.files) return c.files->source;
  if (c.model_text.empty()) return model_source(c.model);
  ModelSource source{sherd::hf::parse_model_config(c.model_text, c.model_from), {}, c.model_text};
  if (!fs::exists(c.model)) return source;
  source.folder = c.model;
  source.folder_differs = c.model_from != (source.folder / "config.json").string();
  return source;
}

TrainConfig with_model_files(TrainConfig c) {
  if (c.model.empty()) return c;
  const auto files = std::make_shared<ModelFiles>();
  files->source = model_source(c);
  c.files = files;
  if (const fs::path weights = stored_weights(c); !weights.empty())
    sherd::hf::require_sizes(files->source.config, weights);
  if (rank_0_is_here(c)) {
    if (!c.export_hf.empty()) files->exported = export_options(c, files->source, true);
    if (c.sample_bytes() > 0) {
      files->tokenizer = tokenizer_of(c, files->source);
      if (!files->source.folder.empty()) files->end_of_text = sherd::hf::end_of_text(files->source.folder);
      if (!c.prompt.empty())
        files->prompt = encoded_prompt(c, files->tokenizer.get(), files->source.config.description.vocab);
    }
  }
  return c;
}

void take_sizes(TrainConfig& c, const ModelSource& source, bool balance_given) {
  const nn::ModelDescription& d = source.config.description;
  c.dim = d.dim;
  c.layers = d.layers;
  c.heads = d.heads;
  c.experts = d.mixture.experts;
  c.expert_top_k = d.mixture.experts > 0 ? d.mixture.top_k : TrainConfig().expert_top_k;
  if (!balance_given) c.moe_aux = d.mixture.experts > 0 ? d.mixture.balance : TrainConfig().moe_aux;
}

int64_t vocabulary(const TrainConfig& c) { return description_of(c).vocab; }

std::unique_ptr<nn::CausalModel> build_model(const TrainConfig& c, const nn::TensorParallel& tp,
                                             const nn::ExpertParallel& ep,
                                             const nn::ContextParallel& context) {
  const nn::ModelDescription d = description_of(c);
  // Number of rows of logits at once, large enough for fast products. On a CPU: all rows of a microbatch up
  // to 64 MiB in f32, since backward computes logits again where a chunk has fewer; else 16 MiB, which stay
  // in the cache. A GPU reads all of the head's weights and gradients once for every product (128 rows: 3
  // times as slow a step).
  const bool gpu = c.device == sherd::DeviceKind::cuda;
  const int64_t most = (int64_t{16} << (gpu ? 24 : 20)) * tp.size() / d.vocab, rows = c.rows_of_rank();
  const int64_t chunk = c.model.empty() ? 0
                        : gpu           ? std::clamp<int64_t>(most / 128 * 128, 128, 8192)
                        : rows <= most  ? rows
                                        : std::clamp<int64_t>(most / 4, 128, 1024);
  return nn::causal_model(d, {.tp = tp,
                              .ep = ep,
                              .context = context,
                              .sequence_parallel = c.sequence_parallel,
                              .logits_chunk = chunk,
                              .lora = lora_options(c),
                              .logit_maxima = c.qk_clip > 0 && c.trains()});
}

sherd::TokenWork token_work(const TrainConfig& c) {
  const nn::ModelDescription d = description_of(c);
  const nn::MixtureDescription& m = d.mixture;
  const int64_t matrices = is_gpt(d) ? 2 : 3;  // of an MLP
  const nn::LatentDescription& l = d.latent;
  const int64_t queries =
      l.q_rank > 0 ? l.q_rank * (d.dim + d.heads * d.head_dim) : d.dim * d.heads * d.head_dim;
  const int64_t attention = l.kv_rank > 0 ? queries + d.dim * (l.kv_rank + l.rope) +
                                                d.heads * (l.kv_rank * (l.nope + l.value) + l.value * d.dim)
                                          : 2 * d.dim * d.head_dim * (d.heads + d.kv_heads);
  const auto windows = static_cast<int64_t>(std::count(d.windowed.begin(), d.windowed.end(), true));
  const int64_t mixtures = m.experts > 0 ? d.layers - m.dense_layers : 0;
  const int64_t mixture = d.dim * (m.experts + matrices * (m.top_k + m.shared) * m.hidden);
  const int64_t mtp = d.mtp_layers;  // each a block with experts, behind eh_proj, and the head once more
  return {.weights = (d.layers + mtp) * attention + (mixtures + mtp) * mixture +
                     (d.layers - mixtures) * matrices * d.dim * d.hidden + mtp * 2 * d.dim * d.dim +
                     (1 + mtp) * d.dim * d.vocab,
          // For latent attention: half of the products with keys and half of those with values.
          .attention_width = (d.layers + mtp - windows) * d.heads *
                             (l.kv_rank > 0 ? (d.head_dim + l.value) / 2 : d.head_dim),
          .window_width = windows * d.heads * d.head_dim,
          .window = d.window};
}

bool begins_with_adapters(const TrainConfig& c) {
  return !c.model.empty() && !c.init_weights.empty() && sherd::hf::is_adapter_folder(c.init_weights);
}

fs::path first_weights(const TrainConfig& c) {
  if (!c.init_weights.empty() && !begins_with_adapters(c)) return c.init_weights;
  const bool of_model = !c.model.empty() && !c.from_scratch && !c.resumes_weights();
  return of_model ? model_source(c).folder : fs::path();
}

std::vector<sherd::FileCopy> model_copies(const TrainConfig& c) {
  std::vector<sherd::FileCopy> copies;
  if (!c.model.empty()) {
    const ModelSource source = model_source(c);
    const std::string text = sherd::parse_object(source.text, source.config.source).dump();
    copies.push_back({"--model, config.json", source.config.source,
                      sherd::checksum(text.data(), static_cast<int64_t>(text.size()))});
  }
  const auto add = [&](const std::string& flag, const fs::path& from, auto read) {
    try {
      for (sherd::FileCopy& copy : read(from)) {
        copy.name = flag + ", " + copy.name;
        copies.push_back(std::move(copy));
      }
    } catch (const sherd::Error& e) {
      copies.push_back({flag, from.string(), 0, e.what()});
    }
  };
  const bool adapters = begins_with_adapters(c);
  if (const fs::path from = first_weights(c); !from.empty())
    add(adapters || c.init_weights.empty() ? "--model" : "--init-weights", from, [&](const fs::path& path) {
      return c.model.empty() ? sherd::weights_copies(path) : sherd::stored_weights_copies(path);
    });
  if (adapters)
    add("--init-weights", c.init_weights,
        [](const fs::path& path) { return sherd::hf::adapter_copies(path); });
  return copies;
}

void freeze_parameters(sherd::ModuleBase& model, const std::string& pattern) {
  if (pattern.empty()) return;
  const sherd::NamePattern frozen(pattern);
  bool some = false, all = true;
  for (auto& [name, p] : model.named_parameters()) {
    if (frozen.matches(name)) {
      p.freeze();
      some = true;
    }
    all = all && !p.trainable();
  }
  if (!some)
    throw sherd::InvalidArgument(fmt::format("--freeze '{}': matches no parameter; the first is {}", pattern,
                                             model.named_parameters().front().first));
  if (all) throw sherd::InvalidArgument(fmt::format("--freeze '{}': leaves no parameter to train", pattern));
}

sherd::LoadReport load_first_weights(nn::CausalModel& model, const TrainConfig& c) {
  const fs::path from = first_weights(c);
  sherd::LoadOptions options{.compare_copies = false};  // compared as model_copies()
  options.allow_unexpected = !c.strict_weights;
  sherd::LoadReport report;
  if (!from.empty())
    report = c.model.empty()
                 ? import_weights(model, from, options)
                 : import_weights(model, from, sherd::hf::stored_forms(description_of(c)), options);
  report.ignored.insert(report.ignored.end(), report.unexpected.begin(), report.unexpected.end());
  if (!begins_with_adapters(c)) return report;
  const sherd::LoadReport adapters =
      sherd::hf::import_adapters(model, c.init_weights, lora_options(c), options);
  report.notes.insert(report.notes.end(), adapters.notes.begin(), adapters.notes.end());
  return report;
}

nn::LoraOptions lora_options(const TrainConfig& c) { return {c.lora_rank, c.lora_alpha, c.lora_targets}; }

bool export_folder(nn::CausalModel& model, const TrainConfig& c, bool rank_0) {
  model.fold_adapters();
  const ModelSource source = model_source(c);
  const bool read_before = rank_0 && c.files && c.files->exported;
  if (rank_0 && is_absent_folder(c.model))
    warn(fmt::format(
        "--export-hf {}: the folder of --model {} is not there any more: no tokenizer's files, and no "
        "tensors that are not part of the model, are written beside the weights",
        c.export_hf, c.model));
  sherd::ExportOptions options = read_before ? *c.files->exported : export_options(c, source, rank_0);
  if (rank_0) options.existing = existing_export(c);
  return export_weights(model, c.export_hf, sherd::hf::stored_forms(description_of(c)), options);
}

}  // namespace train_gpt
