#include <sherd/optim/role.h>

#include <algorithm>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include <sherd/optim/detail/role_words.h>

namespace sherd {
namespace {

using namespace role_words;

/// Guesses by name first, then by the structure of the whole model: vocabulary size, last matrix, lists of
/// layers. Refers to the model.
class Guesser {
 public:
  explicit Guesser(const std::vector<RoleQuestion>& model) : model_(model) {
    for (size_t i = 0; i < model.size(); ++i) {
      places_.push_back(place_of(model[i].name));
      by_name_.emplace(model[i].name, i);
      by_prefix_[places_.back().prefix].push_back(i);
      if (model[i].shape.size() != 2) continue;
      last_matrix_ = i;
      // Embeddings are [vocabulary, width]; position tables usually have fewer rows.
      if (embedding(places_[i])) vocabulary_ = std::max(vocabulary_, model[i].shape[0]);
    }
    layered_ = std::any_of(places_.begin(), places_.end(), [](auto& p) { return p.numbered(); });
  }

  RoleGuess guess(size_t i) const {
    const RoleQuestion& q = model_[i];
    const NamedPlace& at = places_[i];
    const size_t dims = q.shape.size();
    // The order matters: the first kind of evidence that applies decides.
    if (dims < 2) return {Role::vector, "not a matrix"};
    // A table of biases by relative position and a state-space layer's dt_bias are called so, too.
    if (!word_of(at.leaf, {"bias", "biases"}).empty() && !state_space(at) && !(at.bare && embedding(at)))
      return {Role::bias, "bias"};
    if (dims > 3) return {Role::conv, "not a matrix"};
    if (const Guess g = state_space(at)) return *g;
    if (const Guess g = embedding(at)) return *g;
    if (const Guess g = router(i)) return *g;
    if (const Guess g = norm(at)) return *g;
    if (const Guess g = conv(at, dims)) return *g;
    if (const Guess g = head(i)) return *g;
    if (dims == 3) return stack(i);
    if (const Guess g = by_structure(i)) return *g;
    return {Role::hidden, "hidden matrix"};
  }

 private:
  // A router chooses experts. Words near the parameter decide; a plain "gate" needs experts beside or above
  // it.
  Guess router(size_t i) const {
    const NamedPlace& at = places_[i];
    const std::vector<NamePart> above = near(at);
    const auto routes = [](const NamePart& p) { return word_of(p, {"router", "routers"}); };
    if (const std::string w = routes(at.owner); !w.empty()) return sure(Role::router, w, at.owner);
    const NamePart* part = nullptr;
    if (const std::string w = in_any(above, routes, &part); !w.empty()) return sure(Role::router, w, *part);
    if (model_[i].shape.size() != 2) return {};
    const auto experts = [](const NamePart& p) { return word_of(p, {"expert", "experts", "moe"}); };
    if (!experts(at.owner).empty() && at.owner.words.back() == "gate")
      return sure(Role::router, "gate", at.owner);
    const auto is_gate = [](const NamePart& p) {
      return is_one_of(p.text, {"gate", "gating"}) ? p.text : std::string();
    };
    if (!is_gate(at.owner).empty()) return gate(i);
    if (const std::string w = in_any(above, is_gate, &part);
        !w.empty() && !in_any(at.above, experts, &part).empty())
      return RoleGuess{Role::router, fmt::format("{}: a gate of experts", name_of(Role::router))};
    return {};
  }

  // The router of experts, or half of a gated layer.
  Guess gate(size_t i) const {
    const NamedPlace& at = places_[i];
    const auto experts = [](const NamePart& p) { return word_of(p, {"expert", "experts", "moe"}); };
    // A sibling named "experts" settles it: the gate beside it routes.
    for (const size_t j : names_from(at.prefix)) {
      const NamePart beside = parts_of(std::string_view(model_[j].name).substr(at.prefix.size())).front();
      if (!word_of(beside, {"expert", "experts"}).empty())
        return RoleGuess{Role::router, fmt::format("{}: '{}' beside '{}'", name_of(Role::router),
                                                   at.owner.text, beside.text)};
    }
    // A matrix of the same shape beside it makes it half of a gated layer (SwiGLU).
    for (const size_t j : by_prefix_.at(at.prefix))
      if (j != i && model_[j].shape == model_[i].shape)
        return RoleGuess{Role::hidden, fmt::format("hidden matrix: '{}' as large as '{}'", at.owner.text,
                                                   places_[j].owner.text)};
    const NamePart* part = nullptr;
    if (!in_any(at.above, experts, &part).empty())
      return RoleGuess{Role::router,
                       fmt::format("{}: '{}' below '{}'", name_of(Role::router), at.owner.text, part->text)};
    return unsure(Role::router, "a router of experts, or the gate of a layer");
  }

  // A head is outside of layers and last, or has the size of the vocabulary.
  Guess head(size_t i) const {
    const NamedPlace& at = places_[i];
    if (const std::string w = head_word(at.owner); !w.empty()) {
      if (at.numbered())
        return unsure(Role::head, fmt::format("the head '{}' inside a layer", at.owner.text));
      return sure(Role::head, w, at.owner);
    }
    const std::vector<NamePart> above = near(at);
    const NamePart* part = nullptr;
    const bool decodes = at.owner.text == "decoder";
    if (const std::string w = in_any(above, head_word, &part); !w.empty()) {
      if (decodes) return sure(Role::head, w, *part);
      return unsure(Role::head, fmt::format("a matrix inside the head '{}'", part->text));
    }
    if (at.numbered()) return {};
    const char* head_of = name_of(Role::head);
    if (at.owner.text == "score") return sure(Role::head, "score", at.owner);
    if (is_output(at.owner)) {
      if (i == last_matrix_)
        return RoleGuess{Role::head, fmt::format("{}: '{}', the last matrix", head_of, at.owner.text)};
      if (of_vocabulary(i))
        return RoleGuess{Role::head, fmt::format("{}: '{}' of the vocabulary", head_of, at.owner.text)};
      return unsure(Role::head, fmt::format("'{}', but not the last matrix", at.owner.text));
    }
    if (decodes || at.owner.text == "encoder") {
      const Role role = decodes ? Role::head : Role::embedding;
      if (of_vocabulary(i))
        return RoleGuess{role, fmt::format("{}: '{}' of the vocabulary", name_of(role), at.owner.text)};
      return unsure(role, fmt::format("{} or a hidden matrix", name_of(role)));
    }
    if (at.owner.text == "fc" && at.above.empty() && i == last_matrix_ && layered_)
      return unsure(Role::head, "the last matrix, outside of all layers");
    return {};
  }

  // Three dimensions: experts or stacked layers, or the kernel of a convolution. Row blocks and names
  // distinguish them.
  RoleGuess stack(size_t i) const {
    const NamedPlace& at = places_[i];
    if (model_[i].matrices) return {Role::hidden, "stack of hidden matrices: has row blocks"};
    const auto stacked = [](const NamePart& p) {
      return word_of(p, {"expert", "experts", "moe", "stack", "stacked"});
    };
    std::vector<NamePart> all = at.above;
    all.push_back(at.owner);
    const NamePart* part = nullptr;
    if (const std::string w = in_any(all, stacked, &part); !w.empty())
      return {Role::hidden, fmt::format("stack of hidden matrices: word '{}'", w)};
    if (is_one_of(at.owner.text, {"w1", "w2", "w3", "gate_up_proj", "gate_proj", "up_proj", "down_proj"}))
      return {Role::hidden, fmt::format("stack of hidden matrices: called '{}'", at.owner.text)};
    return unsure(Role::conv, "a convolution's kernel, or a stack of matrices");
  }

  // Other names are those of any matrix.
  Guess by_structure(size_t i) const {
    const RoleQuestion& q = model_[i];
    if (q.matrices) return RoleGuess{Role::hidden, "hidden matrix: has row blocks"};
    if (q.shape[0] == 1 || q.shape[1] == 1) return RoleGuess{Role::vector, "one row or column"};
    // A tied parameter has several names; each may say more than the first.
    for (const std::string& other : q.tied) {
      const NamedPlace at = place_of(other);
      if (const Guess g = embedding(at)) return RoleGuess{g->role, g->evidence + " (tied)"};
      std::vector<NamePart> parts = near(at);
      parts.push_back(at.owner);
      const NamePart* part = nullptr;
      if (const std::string w = in_any(parts, head_word, &part); !w.empty())
        return RoleGuess{Role::head, sure(Role::head, w, *part).evidence + " (tied)"};
    }
    if (places_[i].numbered()) return {};
    // Outside of all layers: a tied matrix inside a layer has returned above.
    if (!q.tied.empty()) return unsure(Role::embedding, "tied, as embedding and head are");
    if (of_vocabulary(i))
      return unsure(Role::head,
                    fmt::format("outside of all layers, a size is the vocabulary's, {}", vocabulary_));
    return {};
  }

  bool of_vocabulary(size_t i) const {
    const Shape& s = model_[i].shape;
    return vocabulary_ > 0 && s.size() == 2 && (s[0] == vocabulary_ || s[1] == vocabulary_);
  }

  // Parameters whose names begin with `prefix`, in the model's order.
  std::vector<size_t> names_from(const std::string& prefix) const {
    std::vector<size_t> found;
    for (auto at = by_name_.lower_bound(prefix); at != by_name_.end() && at->first.starts_with(prefix); ++at)
      found.push_back(at->second);
    std::sort(found.begin(), found.end());
    return found;
  }

  const std::vector<RoleQuestion>& model_;
  std::vector<NamedPlace> places_;
  std::multimap<std::string_view, size_t> by_name_;
  std::map<std::string, std::vector<size_t>> by_prefix_;  // of siblings of the owner, in the model's order
  size_t last_matrix_ = 0;
  int64_t vocabulary_ = 0;  // rows of the largest embedding
  bool layered_ = false;    // somewhere there is a list
};

}  // namespace

std::vector<RoleGuess> guess_roles(const std::vector<RoleQuestion>& model) {
  const Guesser guesser(model);
  std::vector<RoleGuess> guesses;
  for (size_t i = 0; i < model.size(); ++i) guesses.push_back(guesser.guess(i));
  return guesses;
}

}  // namespace sherd
