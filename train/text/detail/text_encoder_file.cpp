// Reader of the encoding half of a tokenizer.json.
#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>
#include <sherd/base/printable.h>
#include <sherd/train/text/detail/byte_characters.h>
#include <sherd/train/text/detail/normal_form.h>
#include <sherd/train/text/detail/split_pattern.h>
#include <sherd/train/text/detail/text_encoder.h>
#include <sherd/train/text/detail/tokenizer_json.h>

namespace sherd {
namespace {

using nlohmann::json;

constexpr size_t kMaxSteps = 64, kMaxTemplate = 1024;  // files have a handful of each

constexpr const char* kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

template <class T>
std::optional<T> named(std::initializer_list<std::pair<const char*, T>> table, const std::string& name) {
  for (const auto& [word, value] : table)
    if (name == word) return value;
  return std::nullopt;
}

std::string replaced_matches(std::string_view text, const SplitPattern& pattern, const std::string& with) {
  const std::vector<SplitPattern::Part> parts = pattern.parts(text);
  size_t bytes = 0;
  for (const SplitPattern::Part& part : parts) bytes += part.match ? with.size() : part.end - part.begin;
  require_growth(text.size(), bytes);
  std::string out;
  out.reserve(bytes);
  for (const SplitPattern::Part& part : parts)
    out += part.match ? with : text.substr(part.begin, part.end - part.begin);
  return out;
}

}  // namespace

class TextEncoderFile : TokenizerJson {
 public:
  TextEncoderFile(const json& file, const std::string& source) : TokenizerJson(source), file_(file) {}

  TextEncoder read() {
    read_model(file_["model"]);
    each_step(file_, "normalizer", "normalizers", [&](const std::string& type, const json& step) {
      result_.normalizers_.push_back(normalizer(type, step));
    });
    each_step(file_, "pre_tokenizer", "pretokenizers",
              [&](const std::string& type, const json& step) { read_pre_tokenizer(type, step); });
    bool has_template = false;
    each_step(file_, "post_processor", "processors", [&](const std::string& type, const json& step) {
      if (type == "ByteLevel") return;  // changes offsets alone
      if (type != "TemplateProcessing")
        refuse_part("post_processor", type, "ByteLevel and TemplateProcessing");
      if (std::exchange(has_template, true)) refuse("has a second TemplateProcessing in its post_processor");
      read_template(step);
    });
    read_added_tokens();
    return std::move(result_);
  }

 private:
  using Piece = TextEncoder::Piece;

  [[noreturn]] void refuse_part(const char* part, const std::string& type, const char* known) const {
    refuse(fmt::format("has the {} '{}', which text cannot be encoded with; {} can be followed", part,
                       shown_name(type), known));
  }

  // Calls take(type, step) for a part of the file, or the steps of a Sequence of it.
  template <class Take>
  void each_step(const json& object, const char* part, const char* steps, const Take& take) {
    const auto walk = [&](const json& step, const auto& again) -> void {
      const std::string type = text(step, "type");
      if (type != "Sequence") {
        if (++steps_ > kMaxSteps) refuse(fmt::format("has more than {} steps", kMaxSteps));
        return take(type, step);
      }
      const json& inner = member(step, steps, part);
      if (!inner.is_array()) refuse(fmt::format("has a {} whose steps are not an array", part));
      for (const json& one : inner) again(one, again);
    };
    if (object.contains(part) && !object[part].is_null()) walk(object[part], walk);
  }

  SplitPattern pattern(const json& step, const char* part) const {
    const json& value = member(step, "pattern", part);
    const bool is_regex = value.is_object() && value.contains("Regex");
    const std::string given = text(value, is_regex ? "Regex" : "String");
    try {
      return is_regex ? SplitPattern::regex(given) : SplitPattern::literal(given);
    } catch (const InvalidArgument& e) {
      refuse(fmt::format("has a {} whose pattern '{}' {}", part, shown_name(given), e.what()));
    }
  }

  TextEncoder::Normalizer normalizer(const std::string& type, const json& step) const {
    if (const auto form = named<NormalForm>({{"NFC", NormalForm::NFC},
                                             {"NFD", NormalForm::NFD},
                                             {"NFKC", NormalForm::NFKC},
                                             {"NFKD", NormalForm::NFKD}},
                                            type))
      return [form = *form](const std::string& piece) { return normalized(piece, form); };
    if (type == "Prepend")
      return [first = text(step, "prepend")](const std::string& piece) {
        return piece.empty() ? piece : first + piece;
      };
    if (type == "Replace")
      return [pattern = pattern(step, "normalizer"), with = text(step, "content")](const std::string& piece) {
        return replaced_matches(piece, pattern, with);
      };
    refuse_part("normalizer", type, "NFC, NFD, NFKC, NFKD, Prepend and Replace");
  }

  void read_pre_tokenizer(const std::string& type, const json& step) {
    if (type == "Split") {
      const auto behavior = named<SplitBehavior>({{"Removed", SplitBehavior::Removed},
                                                  {"Isolated", SplitBehavior::Isolated},
                                                  {"MergedWithPrevious", SplitBehavior::MergedWithPrevious},
                                                  {"MergedWithNext", SplitBehavior::MergedWithNext},
                                                  {"Contiguous", SplitBehavior::Contiguous}},
                                                 text(step, "behavior"));
      if (!behavior)
        refuse(fmt::format("has a Split of the behavior '{}'", shown_name(text(step, "behavior"))));
      add_split(pattern(step, "pre_tokenizer"), *behavior, flag(step, "invert", false));
    } else if (type == "Digits") {
      add_split(SplitPattern::regex(flag(step, "individual_digits", false) ? "\\p{N}" : "\\p{N}+"),
                SplitBehavior::Isolated);
    } else if (type == "ByteLevel") {
      read_byte_level(step);
    } else if (type == "Metaspace") {
      read_metaspace(step);
    } else {
      refuse_part("pre_tokenizer", type, "ByteLevel, Digits, Metaspace and Split");
    }
  }

  void add(TextEncoder::PreTokenizer step) { result_.pre_tokenizers_.push_back(std::move(step)); }

  void add_split(SplitPattern pattern, SplitBehavior behavior, bool invert = false) {
    add([pattern = std::move(pattern), behavior, invert](const Piece& piece, std::vector<Piece>& out) {
      for (const std::string_view word : split(piece.text, pattern, behavior, invert))
        if (!word.empty())
          out.push_back({std::string(word), -1, piece.first && word.data() == piece.text.data()});
    });
  }

  void add_prefix(std::string prefix, bool first_alone) {
    add([prefix = std::move(prefix), first_alone](Piece piece, std::vector<Piece>& out) {
      if ((piece.first || !first_alone) && !piece.text.starts_with(prefix)) piece.text.insert(0, prefix);
      out.push_back(std::move(piece));
    });
  }

  void read_byte_level(const json& step) {
    if (std::exchange(byte_level_, true)) refuse("has a second ByteLevel in its pre_tokenizer");
    if (flag(step, "add_prefix_space", true)) add_prefix(" ", false);
    if (flag(step, "use_regex", true)) add_split(SplitPattern::regex(kGpt2Words), SplitBehavior::Isolated);
    add([](Piece piece, std::vector<Piece>& out) {
      piece.text = byte_characters(piece.text);
      out.push_back(std::move(piece));
    });
  }

  void read_metaspace(const json& step) {
    const std::string blank = text(step, "replacement");
    if (blank.empty() || utf8_character(blank) != blank.size())
      refuse(fmt::format("has a Metaspace whose replacement '{}' is not one character", shown_name(blank)));
    const bool prefix = flag(step, "add_prefix_space", true);
    const std::string scheme = step.contains("prepend_scheme") ? text(step, "prepend_scheme")
                               : prefix                        ? "always"
                                                               : "never";
    if ((scheme != "always" && scheme != "first" && scheme != "never") || (!prefix && scheme != "never"))
      refuse(fmt::format("has a Metaspace with the prepend_scheme '{}' and add_prefix_space {}",
                         shown_name(scheme), prefix));
    add([space = SplitPattern::literal(" "), blank](Piece piece, std::vector<Piece>& out) {
      piece.text = replaced_matches(piece.text, space, blank);
      if (!piece.text.empty()) out.push_back(std::move(piece));
    });
    if (scheme != "never") add_prefix(blank, scheme == "first");
    if (flag(step, "split", true)) add_split(SplitPattern::literal(blank), SplitBehavior::MergedWithNext);
  }

  void read_model(const json& model) {
    BytePairs& pairs = result_.model_;
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (model.contains(affix) && !model[affix].is_null() && !text(model, affix).empty())
        refuse_model(affix, model[affix]);
    if (model.contains("dropout") && !model["dropout"].is_null() && model["dropout"] != 0.0)
      refuse_model("dropout", model["dropout"]);
    pairs.ignore_merges = flag(model, "ignore_merges", false);
    pairs.byte_fallback = flag(model, "byte_fallback", false);
    pairs.fuse_unknown = flag(model, "fuse_unk", false);
    if (model.contains("unk_token") && !model["unk_token"].is_null())
      pairs.unknown = text(model, "unk_token");
    for (const auto& [token, number] : model["vocab"].items())
      pairs.vocab.emplace(token, number.get<int32_t>());
    const json& merges = member(model, "merges", "model");
    if (!merges.is_array()) refuse("has merges that are not an array");
    for (const json& merge : merges) read_merge(merge);
  }

  [[noreturn]] void refuse_model(const char* key, const json& value) const {
    refuse(fmt::format("has a model with the {} {}, which text cannot be encoded with", key,
                       shown_value(value)));
  }

  // "a b" or ["a", "b"].
  void read_merge(const json& merge) {
    std::string left, right;
    if (merge.is_string()) {
      const auto& both = merge.get_ref<const std::string&>();
      if (both.starts_with("#version")) return;
      const size_t at = both.find(' ');
      if (at == both.npos || both.find(' ', at + 1) != both.npos) refuse_merge(merge, "is not a pair");
      left = both.substr(0, at);
      right = both.substr(at + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0];
      right = merge[1];
    } else {
      refuse_merge(merge, "is not a pair");
    }
    try {
      result_.model_.add_merge(left, right);
    } catch (const InvalidArgument& e) {
      refuse_merge(merge, fmt::format("needs the token {}, which the vocabulary lacks", e.what()));
    }
  }

  [[noreturn]] void refuse_merge(const json& merge, const std::string& why) const {
    refuse(fmt::format("has a merge, {}, that {}", shown_value(merge), why));
  }

  void read_template(const json& step) {
    const json &parts = member(step, "single", "TemplateProcessing"),
               &tokens = member(step, "special_tokens", "TemplateProcessing");
    if (!parts.is_array()) refuse("has a TemplateProcessing whose 'single' is not an array");
    std::vector<int32_t>& ids = result_.template_;
    ids.clear();
    for (const json& part : parts) {
      if (part.is_object() && part.contains("Sequence") && text(part["Sequence"], "id") == "A") {
        ids.push_back(-1);
      } else {
        const std::string id = text(member(part, "SpecialToken", "a template"), "id");
        const json& numbers =
            member(member(tokens, id.c_str(), "the special_tokens of a template"), "ids", "a template");
        if (!numbers.is_array()) refuse("has a template with 'ids' that are not an array");
        for (const json& number : numbers) {
          if (!number.is_number_unsigned() || number.get<uint64_t>() > INT32_MAX)
            refuse(fmt::format("has a template with the token {}", shown_value(number)));
          ids.push_back(number.get<int32_t>());
        }
      }
      if (ids.size() > kMaxTemplate)
        refuse(fmt::format("has a template of more than {} tokens", kMaxTemplate));
    }
  }

  void read_added_tokens() {
    std::vector<AddedToken> as_they_are, normalized;
    const json none = json::array();
    const json& added =
        file_.contains("added_tokens") && !file_["added_tokens"].is_null() ? file_["added_tokens"] : none;
    // Of equal texts after normalization a special token comes first.
    for (const bool special : {true, false})
      for (const json& token : added) {
        if (flag(token, "special", false) != special) continue;
        AddedToken one{text(token, "content"), token["id"].get<int32_t>(), flag(token, "single_word", false),
                       flag(token, "lstrip", false), flag(token, "rstrip", false)};
        if (one.text.empty()) continue;
        const bool normal = flag(token, "normalized", !special);
        if (normal) one.text = normalized_text(one.text);
        if (one.text.empty()) refuse("has an added token of which its normalizer leaves nothing");
        (normal ? normalized : as_they_are).push_back(std::move(one));
      }
    result_.as_they_are_ = AddedTokens(std::move(as_they_are));
    result_.normalized_ = AddedTokens(std::move(normalized));
  }

  std::string normalized_text(const std::string& content) const {
    try {
      return result_.normalize(content);
    } catch (const InvalidArgument& e) {
      refuse(e.what());
    }
  }

  const json& file_;
  TextEncoder result_;
  size_t steps_ = 0;
  bool byte_level_ = false;
};

std::shared_ptr<const TextEncoder> TextEncoder::read(const json& file, const std::string& source) {
  return std::make_shared<const TextEncoder>(TextEncoderFile(file, source).read());
}

}  // namespace sherd
