#include "param_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>
#include <sherd/base/printable.h>

namespace sherd::tools {
namespace {

using nlohmann::json;

constexpr int kDeepest = 3;  // the list, an entry, its shape
constexpr size_t kShown = 20;
constexpr const char* kFields[] = {"name", "shape", "dtype", "optimizer", "unit", "tied", "blocks"};

/// Everything wrong with the file.
class Complaints {
 public:
  explicit Complaints(std::string source) : source_(std::move(source)) {}
  void add(std::string text) { all_.push_back(std::move(text)); }
  void throw_if_any() const {
    if (all_.empty()) return;
    std::string text = fmt::format("{}: {} problem{}", source_, all_.size(), all_.size() == 1 ? "" : "s");
    for (size_t i = 0; i < std::min(all_.size(), kShown); ++i) text += "\n  " + all_[i];
    if (all_.size() > kShown) text += fmt::format("\n  ... and {} more", all_.size() - kShown);
    throw InvalidArgument(text);
  }

 private:
  std::string source_;
  std::vector<std::string> all_;
};

// Returns the value as JSON, which escapes control characters.
std::string shortened(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() <= 60) return text;
  size_t end = 57;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not inside a character
  return text.substr(0, end) + "...";
}

std::optional<DType> dtype_of(const std::string& word) {
  static const std::map<std::string, DType> kWords = {
      {"fp32", DType::f32},      {"float32", DType::f32}, {"f32", DType::f32},     {"bf16", DType::bf16},
      {"bfloat16", DType::bf16}, {"fp16", DType::f16},    {"float16", DType::f16}, {"f16", DType::f16}};
  const auto it = kWords.find(word);
  return it == kWords.end() ? std::nullopt : std::optional(it->second);
}

std::optional<int64_t> size_of_json(const json& value) {
  if (value.is_number_unsigned()) {
    const auto n = value.get<uint64_t>();
    if (n > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(n);
  }
  return std::nullopt;
}

/// Reads one entry of the list.
class EntryReader {
 public:
  EntryReader(const json& entry, size_t index, Complaints& complaints)
      : entry_(entry), place_(fmt::format("entry {}", index)), complaints_(complaints) {}

  ParamEntry read() {
    ParamEntry p;
    if (!entry_.is_object()) {
      complain(fmt::format("is {}; write an object with {}", shortened(entry_), fmt::join(kFields, ", ")));
      return p;
    }
    p.name = text("name");
    if (!p.name.empty()) place_ += " " + shortened(p.name);
    for (const auto& [key, value] : entry_.items())
      if (std::find(std::begin(kFields), std::end(kFields), key) == std::end(kFields))
        complain(
            fmt::format("unknown field {}; the fields are {}", shortened(key), fmt::join(kFields, ", ")));
    p.unit = text("unit");
    const std::string dtype = text("dtype");
    if (const auto known = dtype_of(dtype)) {
      p.dtype = *known;
    } else if (!dtype.empty()) {
      complain(fmt::format("dtype {} is unknown; use fp32, bf16 or fp16", shortened(dtype)));
    }
    const std::string optimizer = text("optimizer");
    if (optimizer == "muon") p.optimizer = Algorithm::muon;
    if (!optimizer.empty() && optimizer != "muon" && optimizer != "adamw")
      complain(fmt::format("optimizer {} is unknown; use muon or adamw", shortened(optimizer)));
    if (const auto tied = entry_.find("tied"); tied != entry_.end()) {
      if (tied->is_boolean()) {
        p.tied = *tied;
      } else {
        complain(fmt::format("\"tied\" is {}; write true or false", shortened(*tied)));
      }
    }
    const bool has_shape = sizes("shape", true, p.shape) && fits(p.shape);
    const bool has_blocks = sizes("blocks", false, p.blocks);
    if (has_shape) check_matrix(p, has_blocks);
    return p;
  }

 private:
  void complain(const std::string& what) { complaints_.add(place_ + ": " + what); }

  /// A string that is not empty; "" after a complaint.
  std::string text(const char* key) {
    const auto it = entry_.find(key);
    if (it == entry_.end()) {
      complain(fmt::format("\"{}\" is missing", key));
    } else if (!it->is_string() || it->get_ref<const std::string&>().empty()) {
      complain(fmt::format("\"{}\" is {}; write a string that is not empty", key, shortened(*it)));
    } else {
      return *it;
    }
    return "";
  }

  bool sizes(const char* key, bool required, std::vector<int64_t>& out) {
    const auto it = entry_.find(key);
    if (it == entry_.end()) {
      if (required) complain(fmt::format("\"{}\" is missing", key));
      return !required;
    }
    if (!it->is_array()) {
      complain(fmt::format("\"{}\" is {}; write a list of sizes, e.g. [4096, 1024]", key, shortened(*it)));
      return false;
    }
    for (const json& value : *it) {
      const auto n = size_of_json(value);
      if (!n) {
        complain(
            fmt::format("\"{}\" has {}; sizes are whole numbers from 0 to 2^63 - 1", key, shortened(value)));
        return false;
      }
      out.push_back(*n);
    }
    return true;
  }

  // Also without its zeros, which hide how large the other sizes are.
  bool fits(const Shape& shape) {
    int64_t product = 1;
    for (int64_t d : shape) {
      if (!__builtin_mul_overflow(product, std::max<int64_t>(d, 1), &product)) continue;
      complain(
          fmt::format("shape {} has more than 2^63 - 1 elements; split the parameter", to_string(shape)));
      return false;
    }
    return true;
  }

  void check_matrix(const ParamEntry& p, bool has_blocks) {
    const bool matrix = p.shape.size() == 2 || p.shape.size() == 3;
    if (p.optimizer == Algorithm::muon && !matrix)
      complain(
          fmt::format("shape {} goes to muon, which updates matrices (2-D) and stacks of them (3-D) only; "
                      "use adamw",
                      to_string(p.shape)));
    if (p.blocks.empty() || !has_blocks) return;
    if (!matrix)
      return complain(fmt::format("\"blocks\" of shape {}: only matrices have them", to_string(p.shape)));
    const int64_t rows = p.shape[p.shape.size() - 2];
    int64_t sum = 0;
    for (int64_t b : p.blocks)
      if (__builtin_add_overflow(sum, b, &sum)) sum = std::numeric_limits<int64_t>::max();
    if (sum != rows)
      complain(
          fmt::format("\"blocks\" [{}] add up to {} of the {} rows", fmt::join(p.blocks, ", "), sum, rows));
  }

  const json& entry_;
  std::string place_;
  Complaints& complaints_;
};

/// Complains about a key that an entry has twice: of those the parser keeps the last.
json parse_json(std::istream& in, const std::string& source, Complaints& complaints) {
  using Event = json::parse_event_t;
  std::set<std::string> keys;
  size_t entries = 0;
  const auto look = [&](int depth, Event event, json& value) {
    const bool opens = event == Event::array_start || event == Event::object_start;
    if (depth == 1 && (opens || event == Event::value)) {
      ++entries;
      keys.clear();
    }
    if (depth == 2 && event == Event::key && !keys.insert(value.get_ref<const std::string&>()).second)
      complaints.add(fmt::format("entry {}: the key {} appears more than once; keep one", entries - 1,
                                 shortened(value)));
    if (opens && depth >= kDeepest)
      throw InvalidArgument(fmt::format(
          "{}: lists or objects nested more than {} deep; write a list of objects, one for each parameter",
          source, kDeepest));
    return true;
  };
  try {
    return json::parse(in, look);
  } catch (const json::exception& e) {
    throw InvalidArgument(fmt::format("{}: not JSON: {}; write a list of objects, one for each parameter",
                                      source, printable(json_reason(e))));
  }
}

}  // namespace

std::vector<ParamEntry> parse_params(std::istream& in, const std::string& source) {
  Complaints complaints(source);
  const json list = parse_json(in, source, complaints);
  if (!list.is_array())
    complaints.add(
        fmt::format("the file holds {}; write a list of objects, one for each parameter", shortened(list)));
  if (list.is_array() && list.empty()) complaints.add("the list is empty; list at least one parameter");
  if (!list.is_array() || list.empty()) complaints.throw_if_any();

  std::vector<ParamEntry> params;
  std::map<std::string, size_t> first_use;
  for (size_t i = 0; i < list.size(); ++i) {
    params.push_back(EntryReader(list[i], i, complaints).read());
    if (params.back().name.empty()) continue;
    const auto [it, fresh] = first_use.try_emplace(params.back().name, i);
    if (!fresh)
      complaints.add(fmt::format("entry {} {}: entry {} has this name, too; give each parameter its own", i,
                                 shortened(params.back().name), it->second));
  }
  complaints.throw_if_any();
  int64_t total = 0;
  for (const ParamEntry& p : params)
    if (__builtin_add_overflow(total, numel_of(p.shape), &total)) {
      complaints.add(fmt::format("up to {} there are more than 2^63 - 1 elements; describe a smaller model",
                                 shortened(p.name)));
      break;
    }
  complaints.throw_if_any();
  return params;
}

std::vector<ParamEntry> read_params(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw IoError(fmt::format("{}: is a folder; name a JSON file", path));
  std::ifstream in(path, std::ios::binary);
  if (!in)
    throw IoError(fmt::format("{}: cannot be read ({}); name a JSON file", path, std::strerror(errno)));
  return parse_params(in, path);
}

}  // namespace sherd::tools
