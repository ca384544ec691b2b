#include <sherd/nn/hf/model_folder.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/base/printable.h>
#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/nn/models/lora.h>
#include <sherd/nn/models/stored_names.h>

namespace sherd::hf {
namespace {

// Models of fewer blocks and bytes than these are built in a moment.
constexpr int64_t kFewBlocks = 64;
constexpr double kFewBytes = 256e6;

// The number behind "layers." or "h." of a name, or -1.
int64_t block_of(std::string_view name) {
  for (const std::string_view list : {"layers.", "h."}) {
    const size_t at = name.find(list);
    if (at == name.npos || (at > 0 && name[at - 1] != '.')) continue;
    std::string_view rest = name.substr(at + list.size());
    rest = rest.substr(0, std::min<size_t>(rest.find('.'), 9));
    const bool number = !rest.empty() && std::all_of(rest.begin(), rest.end(),
                                                     [](unsigned char c) { return std::isdigit(c); });
    if (number) return std::stoll(std::string(rest));
  }
  return -1;
}

// Bytes that the largest matrices take at least, at two bytes an element.
double least_bytes(const nn::ModelDescription& d) {
  const auto product = [](auto... sizes) { return (2.0 * ... * static_cast<double>(sizes)); };
  const int matrices = d.family == nn::ModelFamily::gpt2 ? 2 : 3;
  const double dense = product(matrices, d.dim, d.hidden);
  const double mixture = product(3, d.mixture.experts, d.dim, d.mixture.hidden);
  const int64_t mixtures = d.mixture.experts > 0 ? d.layers - d.mixture.dense_layers : 0;
  const double attention = d.latent.kv_rank > 0 ? product(d.dim, d.heads, d.latent.value)
                                                : product(2, d.dim, d.head_dim, d.heads + d.kv_heads);
  return static_cast<double>(d.layers) * attention + static_cast<double>(mixtures) * mixture +
         static_cast<double>(d.layers - mixtures) * dense + product(d.vocab, d.dim);
}

}  // namespace

void require_sizes(const ModelConfig& config, const std::filesystem::path& weights) {
  const nn::ModelDescription& d = config.description;
  const double needed = least_bytes(d);
  if (d.layers <= kFewBlocks && needed <= kFewBytes) return;
  std::set<int64_t> blocks;
  double bytes = 0;
  try {
    const auto whatever_it_is = [](std::string_view) { return true; };
    const auto reader = CheckpointReader::open(weights, whatever_it_is);
    for (const CheckpointTensor& t : reader.manifest().tensors) {
      if (t.section != Section::model) continue;
      blocks.insert(block_of(t.name));
      bytes += static_cast<double>(numel_of(t.shape)) * static_cast<double>(size_of(t.dtype));
    }
  } catch (const Error&) {
    return;  // import_weights() says so, on all ranks
  }
  blocks.erase(-1);
  const auto refuse = [&](const std::string& described, const std::string& held) {
    throw InvalidArgument(fmt::format(
        "'{}' describes {}, and '{}' holds {}; correct config.json, or name the weights of this model",
        printable(config.source), described, printable(weights.string()), held));
  };
  const int64_t stored = std::ssize(blocks);
  if (d.layers > kFewBlocks && d.layers > 2 * stored)
    refuse(fmt::format("{} blocks", d.layers), fmt::format("{} block{}", stored, stored == 1 ? "" : "s"));
  if (needed > kFewBytes && needed > 2 * bytes)
    refuse(fmt::format("weights of {:.3g} bytes or more (vocabulary {}, {} columns, {} blocks)", needed,
                       d.vocab, d.dim, d.layers),
           fmt::format("{:.3g} bytes", bytes));
}

StoredForms stored_forms(const nn::ModelDescription& description) {
  const bool gpt2 = description.family == nn::ModelFamily::gpt2;
  StoredForms forms;
  forms.forms.push_back(nn::stored_names(description));
  if (description.mixture.experts > 0 && !is_gpt_oss(description))
    forms.forms.push_back(nn::stored_names(description, true));
  forms.holds = [](std::string_view name) { return !nn::is_adapter(name); };
  forms.droppable_prefixes = {gpt2 ? "transformer." : "model."};
  // Causal masks, and the angles' frequencies, which older versions stored.
  if (gpt2)
    forms.ignored_endings = {".attn.bias", ".attn.masked_bias"};
  else
    forms.ignored_endings = {"rotary_emb.inv_freq"};
  if (description.tied)
    forms.copies = {{"lm_head.weight", gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight"}};
  for (int64_t i = 0; i < description.mtp_layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", description.layers + i);
    forms.copies[layer + "embed_tokens.weight"] = "model.embed_tokens.weight";
    forms.copies[layer + "shared_head.head.weight"] =
        description.tied ? "model.embed_tokens.weight" : "lm_head.weight";
    forms.written_copies.insert({layer + "embed_tokens.weight", layer + "shared_head.head.weight"});
  }
  return forms;
}

}  // namespace sherd::hf
