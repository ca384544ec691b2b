#include <sherd/optim/detail/role_words.h>

#include <algorithm>

#include <fmt/format.h>

namespace sherd::role_words {

bool is_one_of(std::string_view text, Words all) {
  return std::find(all.begin(), all.end(), text) != all.end();
}

std::string word_of(const NamePart& part, Words all) {
  for (const std::string& w : part.words)
    if (is_one_of(w, all)) return w;
  return "";
}

namespace {

std::string word_with(const NamePart& part, std::string_view piece) {
  for (const std::string& w : part.words)
    if (w.find(piece) != w.npos) return w;
  return "";
}

/// Returns the word that makes the part an embedding; empty without one. Unembeddings are heads.
std::string embedding_word(const NamePart& part) {
  for (const std::string& w : part.words) {
    if (w.find("embed") != w.npos && w.find("unembed") == w.npos) return w;
    if (w.ends_with("emb") || w.ends_with("embs")) return w;
  }
  if (is_one_of(part.text, {"tok", "pos"})) return part.text;
  if (const std::string w = word_of(part, {"relative", "rel"});
      !w.empty() && !word_of(part, {"bias", "pos", "position", "positions"}).empty())
    return w;
  return word_of(part, {"wte", "wpe", "position", "positions", "positional", "codebook"});
}

std::string norm_word(const NamePart& part) {
  const std::string w = word_with(part, "norm");
  return w.empty() ? word_of(part, {"ln", "bn"}) : w;
}

std::string conv_word(const NamePart& part) {
  for (const std::string& w : part.words)
    if (w == "convs" || w.ends_with("conv") || w.starts_with("convol")) return w;
  return "";
}

}  // namespace

// Attention heads are not output heads: "multi_head" and "kv_head" are excluded.
std::string head_word(const NamePart& part) {
  const bool attention = !word_of(part, {"multi", "per", "kv", "attn", "attention"}).empty();
  if (!part.words.empty() && part.words.back() == "head" && !attention) return "head";
  if (is_one_of(part.text, {"cls", "qa_outputs", "seq_relationship"})) return part.text;
  for (const std::string_view piece : {"classif", "unembed", "logit"})
    if (const std::string w = word_with(part, piece); !w.empty()) return w;
  return word_of(part, {"vocab", "prediction", "predictions"});
}

bool is_output(const NamePart& part) {
  if (part.words.empty() || !is_one_of(part.words[0], {"output", "outputs"})) return false;
  return std::all_of(part.words.begin() + 1, part.words.end(), [](const std::string& w) {
    return is_one_of(w, {"layer", "linear", "dense", "fc", "proj", "projection"});
  });
}

RoleGuess sure(Role role, std::string_view word, const NamePart& part) {
  return {role, word == part.text ? fmt::format("{}: word '{}'", name_of(role), word)
                                  : fmt::format("{}: word '{}' in '{}'", name_of(role), word, part.text)};
}

RoleGuess unsure(Role role, const std::string& why) { return {role, "ambiguous: " + why, true}; }

// Parts above the innermost list of layers say nothing about a parameter inside it.
std::vector<NamePart> near(const NamedPlace& at) {
  const auto list = std::find_if(at.above.rbegin(), at.above.rend(), [](auto& p) { return p.is_listed(); });
  return {list.base(), at.above.end()};
}

Guess embedding(const NamedPlace& at) {
  if (const std::string w = embedding_word(at.owner); !w.empty()) return sure(Role::embedding, w, at.owner);
  if (!at.bare && at.owner.text == "shared" && !at.numbered())
    return sure(Role::embedding, "shared", at.owner);
  if (at.bare)
    if (const std::string w = word_of(at.leaf, {"token", "tokens", "latents", "prompt", "prompts"});
        !w.empty())
      return sure(Role::embedding, w, at.leaf);
  const std::vector<NamePart> above = near(at);
  const NamePart* part = nullptr;
  if (const std::string w = in_any(above, embedding_word, &part); !w.empty())
    return sure(Role::embedding, w, *part);
  return {};
}

Guess state_space(const NamedPlace& at) {
  if (at.bare && is_one_of(at.leaf.text, {"A_log", "A_logs", "D", "Ds", "dt_bias", "dt"}))
    return RoleGuess{Role::state_space,
                     fmt::format("{}: called '{}'", name_of(Role::state_space), at.leaf.text)};
  return {};
}

// Returns the role for norms. A matrix below a norm may be its modulation (adaLN), so that guess is
// ambiguous.
Guess norm(const NamedPlace& at) {
  if (const std::string w = norm_word(at.owner); !w.empty()) return sure(Role::norm, w, at.owner);
  const std::vector<NamePart> above = near(at);
  const NamePart* part = nullptr;
  if (const std::string w = in_any(above, norm_word, &part); !w.empty()) {
    if (at.bare && part == &above.back()) return sure(Role::norm, w, *part);
    return unsure(Role::norm, fmt::format("a matrix inside the norm '{}'", part->text));
  }
  return {};
}

// Returns the role for convolutions. A matrix counts only with a dimension in the name, such as Conv1D's
// "1d".
Guess conv(const NamedPlace& at, size_t dims) {
  const NamePart* part = &at.owner;
  std::string w = conv_word(at.owner);
  const std::vector<NamePart> above = near(at);
  if (w.empty() && dims == 3) w = in_any(above, conv_word, &part);
  if (w.empty()) return {};
  if (dims == 3 || part->has("d")) return sure(Role::conv, w, *part);
  return unsure(Role::conv, fmt::format("word '{}' in '{}', but a matrix", w, part->text));
}

}  // namespace sherd::role_words
