// Models for the tools' tests.
#pragma once

#include <string>
#include <vector>

#include "layout/param_file.h"

namespace sherd::tools {

inline ParamEntry entry(std::string name, Shape shape, Algorithm optimizer, std::string unit,
                        std::vector<int64_t> blocks = {}) {
  return {std::move(name), std::move(shape), DType::bf16, optimizer, std::move(unit),
          false,           std::move(blocks)};
}

/// Tied embedding and last norm in the root; norms to AdamW, everything else to Muon.
inline std::vector<ParamEntry> transformer(int layers, int64_t d, int64_t ffn, int64_t vocab) {
  constexpr auto kMuon = Algorithm::muon, kAdamW = Algorithm::adamw;
  std::vector<ParamEntry> model = {entry("embed", {vocab, d}, kAdamW, "root")};
  model[0].tied = true;
  for (int i = 0; i < layers; ++i) {
    const std::string u = "layers." + std::to_string(i);
    model.push_back(entry(u + ".norm1", {d}, kAdamW, u));
    model.push_back(entry(u + ".qkv", {3 * d, d}, kMuon, u, {d, d, d}));
    model.push_back(entry(u + ".o", {d, d}, kMuon, u));
    model.push_back(entry(u + ".norm2", {d}, kAdamW, u));
    for (const char* name : {".gate", ".up"}) model.push_back(entry(u + name, {ffn, d}, kMuon, u));
    model.push_back(entry(u + ".down", {d, ffn}, kMuon, u));
  }
  model.push_back(entry("norm", {d}, kAdamW, "root"));
  return model;
}

}  // namespace sherd::tools
