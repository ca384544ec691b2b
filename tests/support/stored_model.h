// Module whose parameters are stored in files of other programs in every way that families of models have,
// and such files.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <sherd/checkpoint/stored_forms.h>
#include <sherd/checkpoint/weights.h>

#include "support/pieces.h"
#include "temporary_folder.h"

namespace sherd::test {

struct StoredSizes {
  int64_t vocab = 8, dim = 4, experts = 4, hidden = 3;
};

/// A trunk that tp cuts (q, k and v as GPT-2 has them, [in, out]), experts that their mesh distributes.
class StoredModel : public ModuleBase {
 public:
  StoredModel(RankContext& r, const Spread& spread, const StoredSizes& n)
      : mesh_(spread.mesh(r)), expert_mesh_(spread.expert_mesh(r)), experts_(expert_mesh_, n) {
    const Cutter tp(mesh_, "tp");
    const auto named = [&](const std::string& name) {
      return [this, name](const Shape& s) { return param("transformer." + name, s, normal(1)); };
    };
    tp.cut(named("wte.weight"), {n.vocab, n.dim}, 0);
    for (const char* part : {"q", "k", "v"}) {
      tp.cut(named(std::string("h.0.attn.") + part + ".weight"), {n.dim, n.dim}, 1);
      tp.cut(named(std::string("h.0.attn.") + part + ".bias"), {n.dim}, 0);
    }
    tp.cut(named("h.0.attn.c_proj.weight"), {n.dim, n.dim}, 0);
    param("transformer.h.0.ln_1.weight", {n.dim}, normal(1));
    child("experts", experts_);
  }
  void wrap(Strategy strategy = Strategy::optim_grads_params) {
    FullyShardOptions options{.strategy = strategy};
    FullyShardOptions own = options;
    own.shard_dim = "expert_shard";
    fully_shard(experts_, expert_mesh_, own);
    fully_shard(*this, mesh_, options, {.seed = 9});
  }

 private:
  struct Experts : ModuleBase {
    Experts(const DeviceMesh& mesh, const StoredSizes& n) {
      const Cutter ep(mesh, "expert");
      const auto named = [&](const char* name) {
        return [this, name](const Shape& s) { return param(name, s, normal(1)); };
      };
      ep.cut(named("gate"), {n.experts, n.hidden, n.dim}, 0);
      ep.cut(named("up"), {n.experts, n.hidden, n.dim}, 0);
      ep.cut(named("down"), {n.experts, n.dim, n.hidden}, 0);
    }
  };

  DeviceMesh mesh_, expert_mesh_;
  Experts experts_;
};

/// One by one or, `fused`, gate over up in one stack and down in another.
inline StoredNames stored_names(const StoredSizes& n, bool fused) {
  StoredNames names;
  const std::string block = "transformer.h.0.";
  int64_t column = 0;
  for (const char* part : {"q", "k", "v"}) {
    const std::string own = block + "attn." + part;
    names[own + ".weight"] = {{block + "attn.c_attn.weight",
                               {n.dim, 3 * n.dim},
                               {{0, 0}, {n.dim, n.dim}},
                               {{0, column}, {n.dim, n.dim}}}};
    names[own + ".bias"] = {{block + "attn.c_attn.bias", {3 * n.dim}, {{0}, {n.dim}}, {{column}, {n.dim}}}};
    column += n.dim;
  }
  const auto expert = [&](const char* part, int64_t rows, int64_t cols, const char* stack, int64_t stack_rows,
                          int64_t first) {
    std::vector<StoredPiece>& pieces = names[std::string("experts.") + part];
    for (int64_t e = 0; e < n.experts; ++e) {
      const Box own{{e, 0, 0}, {1, rows, cols}};
      if (fused)
        pieces.push_back({block + "mlp.experts." + stack,
                          {n.experts, stack_rows, cols},
                          own,
                          {{e, first, 0}, {1, rows, cols}}});
      else
        pieces.push_back({block + "mlp.experts." + std::to_string(e) + "." + part + "_proj.weight",
                          {rows, cols},
                          own,
                          {{0, 0}, {rows, cols}}});
    }
  };
  expert("gate", n.hidden, n.dim, "gate_up_proj", 2 * n.hidden, 0);
  expert("up", n.hidden, n.dim, "gate_up_proj", 2 * n.hidden, n.hidden);
  expert("down", n.dim, n.hidden, "down_proj", n.dim, 0);
  return names;
}

inline StoredForms stored_forms(const StoredSizes& n) {
  return {.forms = {stored_names(n, false), stored_names(n, true)},
          .droppable_prefixes = {"transformer."},
          .ignored_endings = {".attn.bias", ".inv_freq"},
          .copies = {{"lm_head.weight", "transformer.wte.weight"}}};
}

/// A tensor as a file has it; `dtype` is the format's name, `bytes` the data.
struct FileTensor {
  std::string name, dtype;
  Shape shape;
  std::string bytes;
};

/// `count` values that f32, bf16 and f16 hold exactly, none of them zero.
inline std::string exact_values(const std::string& dtype, int64_t count, std::mt19937_64& random) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(static_cast<int>(random() % 255) - 127) / 64 + 1.0f / 128;
    const bf16 b(value);
    const f16 h(value);
    if (dtype == "F32") bytes.append(reinterpret_cast<const char*>(&value), 4);
    if (dtype == "BF16") bytes.append(reinterpret_cast<const char*>(&b), 2);
    if (dtype == "F16") bytes.append(reinterpret_cast<const char*>(&h), 2);
  }
  return bytes;
}

/// The model's tensors in the fused form or the other, in the order of names.
inline std::vector<FileTensor> file_tensors(const StoredSizes& n, bool fused, const std::string& dtype,
                                            std::mt19937_64& random) {
  std::map<std::string, Shape> shapes = {{"transformer.wte.weight", {n.vocab, n.dim}},
                                         {"transformer.h.0.attn.c_proj.weight", {n.dim, n.dim}},
                                         {"transformer.h.0.ln_1.weight", {n.dim}}};
  for (const auto& [parameter, pieces] : stored_names(n, fused))
    for (const StoredPiece& piece : pieces) shapes[piece.tensor] = piece.shape;
  std::vector<FileTensor> tensors;
  for (const auto& [name, shape] : shapes)
    tensors.push_back({name, dtype, shape, exact_values(dtype, numel_of(shape), random)});
  return tensors;
}

/// A safetensors file whose header has its entries in another order than the data, and spaces where the
/// writer of sherd has none.
inline std::string file_of(const std::vector<FileTensor>& tensors, const std::string& metadata = "") {
  std::string entries = metadata.empty() ? "" : "\"__metadata__\": " + metadata, data;
  std::vector<std::string> list;
  for (const FileTensor& t : tensors) {
    std::string shape;
    for (const int64_t size : t.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
    list.push_back("\"" + t.name + "\": {\"shape\": [" + shape + "], \"dtype\": \"" + t.dtype +
                   "\", \"data_offsets\": [" + std::to_string(data.size()) + ", " +
                   std::to_string(data.size() + t.bytes.size()) + "]}");
    data += t.bytes;
  }
  for (size_t i = list.size(); i-- > 0;) entries += (entries.empty() ? "" : ", ") + list[i];
  std::string header = "{" + entries + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

constexpr const char* kStoredIndex = "model.safetensors.index.json";

/// Returns the name that Hugging Face gives the file.
inline std::string name_of_file(size_t i, size_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, count);
  return count == 1 ? "model.safetensors" : name;
}

/// Writes tensors to so many files, assigned in turn, with an index where there are several.
inline void write_folder(const TemporaryFolder& folder, const std::string& name,
                         const std::vector<FileTensor>& tensors, size_t files = 1) {
  std::vector<std::vector<FileTensor>> dealt(files);
  for (size_t i = 0; i < tensors.size(); ++i) dealt[i % files].push_back(tensors[i]);
  std::string map;
  for (size_t i = 0; i < files; ++i) {
    folder.write(name + "/" + name_of_file(i, files),
                 file_of(dealt[i], R"({"format": "pt", "by": "a \u0074est"})"));
    for (const FileTensor& t : dealt[i])
      map += (map.empty() ? "" : ",\n") + ("\"" + t.name + "\":\"" + name_of_file(i, files) + "\"");
  }
  if (files > 1)
    folder.write(name + "/" + kStoredIndex, "{\"weight_map\":{" + map + "}, \"metadata\": {}}\n");
  folder.write(name + "/config.json", "{\"model_type\": \"test\"}");
  folder.write(name + "/tokenizer.json", std::string("{\"\0\xff\"}", 6));
}

/// Bytes of the files of a folder and those below it, by path in it.
inline std::map<std::string, std::string> contents(const std::filesystem::path& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) all[entry.path().lexically_relative(folder)] = read_bytes(entry.path());
  return all;
}

struct Through {
  std::vector<LoadReport> reports;  // by rank
  std::vector<int64_t> held;        // elements, by rank
};

/// A model fills itself from `from` and, where `to` is not empty, writes a folder like it.
inline Through through(const Spread& spread, const StoredSizes& n, const std::filesystem::path& from,
                       const std::filesystem::path& to, Strategy strategy = Strategy::optim_grads_params,
                       const LoadOptions& load = {}, FileSystem& files = FileSystem::posix()) {
  Through outcome;
  outcome.reports.resize(static_cast<size_t>(spread.ranks()));
  outcome.held.resize(outcome.reports.size());
  launch(spread.ranks(), [&](RankContext& r) {
    const auto me = static_cast<size_t>(r.world->rank());
    StoredModel model(r, spread, n);
    model.wrap(strategy);
    outcome.reports[me] = import_weights(model, from, stored_forms(n), load, files);
    for (auto& [name, p] : model.named_parameters()) outcome.held[me] += p.shard().numel();
    if (to.empty()) return;
    ExportOptions options;
    options.allow_unexpected = load.allow_unexpected;
    if (me == 0) options.like = StoredFolder::open(from, files);
    export_weights(model, to, stored_forms(n), options, files);
  });
  return outcome;
}

inline const Spread kStoredSpreads[] = {{},
                                        {.tp = 2},
                                        {.shard = 3},
                                        {.shard = 2, .tp = 2, .experts = 2},
                                        {.replicas = 2, .shard = 3, .experts = 2}};

}  // namespace sherd::test
