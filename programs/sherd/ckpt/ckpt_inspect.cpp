#include "ckpt_inspect.h"

#include <algorithm>
#include <charconv>
#include <map>

#include <fmt/format.h>

#include "elements.h"
#include "tensor_stream.h"
#include "text.h"

namespace sherd::tools {
namespace {

constexpr std::string_view kStatePrefix = "optim.state.";
constexpr size_t kHoldersShown = 32;
constexpr size_t kInfoShown = 80;

std::string_view parameter_part(Section section, const std::string& name) {
  std::string_view rest = name;
  if (section == Section::optim && rest.starts_with(kStatePrefix)) rest.remove_prefix(kStatePrefix.size());
  return rest;
}

// Values of several lines are tables: as they are, indented. Long ones are cut unless `whole`.
std::string info_text(const std::map<std::string, std::string>& info, bool whole) {
  std::string text;
  const auto line = [&](std::string what) {
    what = printable(what);
    if (!whole && what.size() > kInfoShown) {
      size_t end = kInfoShown;
      while ((what[end] & 0xc0) == 0x80) --end;  // inside a character of several bytes
      what = what.substr(0, end) + "... (--tensors shows all)";
    }
    text += "  " + what + "\n";
  };
  for (auto& [key, value] : info) {
    const bool table = value.find('\n') != std::string::npos;
    line(table ? key : key + "  " + value);
    for (size_t at = 0; table && at < value.size();) {
      const size_t end = std::min(value.find('\n', at), value.size());
      line("  " + value.substr(at, end - at));
      at = end + 1;
    }
  }
  return text;
}

std::string training_text(const Manifest& m, bool whole) {
  if (!m.checksums) return "no manifest: no training state, no checksums\n";
  const TrainingState& t = m.training;
  return fmt::format("step {}, {} consumed, seed {}; save number {}\n", t.step,
                     count_text(t.sequences, "training sequence"), t.seed, m.sequence) +
         info_text(t.info, whole);
}

struct ModuleTotals {
  std::vector<const CheckpointTensor*> tensors;
  int64_t elements = 0, bytes = 0, pieces = 0;
};

// Modules in the order of their first tensors.
std::vector<std::pair<std::string, ModuleTotals>> modules_of(const Manifest& m, Section section) {
  std::vector<std::pair<std::string, ModuleTotals>> modules;
  std::map<std::string, size_t> places;
  for (const CheckpointTensor& t : m.tensors) {
    if (section_of(m, t) != section) continue;
    const std::string name = module_of(section, t.name);
    const auto [place, added] = places.try_emplace(name, modules.size());
    if (added) modules.emplace_back(name, ModuleTotals{});
    ModuleTotals& totals = modules[place->second].second;
    totals.tensors.push_back(&t);
    totals.elements += numel_of(t.shape);
    totals.bytes += bytes_of(t);
    totals.pieces += static_cast<int64_t>(t.pieces.size());
  }
  return modules;
}

// Names below the module are enough under its line.
std::string leaf_of(Section section, const std::string& module, const std::string& name) {
  std::string_view rest = parameter_part(section, name);
  if (!module.empty()) rest.remove_prefix(module.size() + 1);
  return printable(std::string(rest));
}

std::string section_text(const Manifest& m, Section section, bool with_tensors) {
  const SectionTotals all = totals_of(m, section);
  if (all.tensors == 0) return "";
  const auto modules = modules_of(m, section);
  size_t width = 6, shape_width = 0;
  for (auto& [name, totals] : modules) {
    width = std::max(width, printable(name).size());
    for (const CheckpointTensor* t : totals.tensors) {
      if (!with_tensors) break;
      width = std::max(width, leaf_of(section, name, t->name).size() + 2);
      shape_width = std::max(shape_width, to_string(t->stored_shape()).size() + 6);
    }
  }
  shape_width = std::max<size_t>(shape_width, 7);
  std::string text = fmt::format("\n{}: {}, {} elements, {}\n", name_of(section),
                                 count_text(all.tensors, "tensor"), all.elements, bytes_text(all.bytes));
  const auto line = [&](const std::string& what, const std::string& shape, const auto& elements,
                        const std::string& bytes, const auto& pieces) {
    text += fmt::format("  {:<{}} {:>{}} {:>14} {:>11} {:>8}\n", what, width, shape, shape_width, elements,
                        bytes, pieces);
  };
  line("module", "tensors", "elements", "bytes", "pieces");
  for (auto& [name, totals] : modules) {
    line(name.empty() ? "(root)" : printable(name), std::to_string(totals.tensors.size()), totals.elements,
         bytes_text(totals.bytes), totals.pieces);
    if (!with_tensors) continue;
    for (const CheckpointTensor* t : totals.tensors)
      line("  " + leaf_of(section, name, t->name),
           fmt::format("{} {:>4}", to_string(t->stored_shape()), name_of(t->dtype)), numel_of(t->shape),
           bytes_text(bytes_of(*t)), t->pieces.size());
  }
  return text;
}

std::string tied_text(const Manifest& m) {
  std::string text;
  for (const CheckpointTensor& t : m.tensors)
    for (const std::string& other : t.tied)
      text += fmt::format("  {} = {} (tied)\n", printable(other), printable(t.name));
  return text;
}

// Returns the text about tensors in which the writer of the manifest counted non-finite elements.
std::string not_finite_text(const Manifest& m) {
  std::string text;
  int64_t tensors = 0, values = 0;
  for (const CheckpointTensor& t : m.tensors) {
    const NotFinite found = not_finite_of(t);
    if (found.count == 0) continue;
    ++tensors;
    values += found.count;
    text += fmt::format("  {} {}: {} of {}, the first at {}\n", printable(t.name), to_string(t.shape),
                        found.count, count_text(numel_of(t.shape), "value"),
                        to_string(index_of(t.shape, found.first)));
  }
  if (tensors == 0) return "";
  return fmt::format("\nnot finite: {} of {}\n{}", count_text(values, "value"), count_text(tensors, "tensor"),
                     text);
}

std::string holders_text(const Manifest& m, bool all) {
  const std::vector<HolderTotals> holders = holders_of(m);
  std::string text = fmt::format("\n  {:<40} {:>6} {:>8} {:>11}\n", "rank", "files", "pieces", "bytes");
  const size_t shown = all ? holders.size() : std::min(holders.size(), kHoldersShown);
  HolderTotals sum;
  for (size_t i = 0; i < holders.size(); ++i) {
    const HolderTotals& h = holders[i];
    if (i < shown)
      text += fmt::format("  {:<40} {:>6} {:>8} {:>11}\n",
                          h.rank ? std::to_string(*h.rank) : "? " + printable(h.path), h.files, h.pieces,
                          bytes_text(h.bytes));
    sum.files += h.files;
    sum.pieces += h.pieces;
    sum.bytes += h.bytes;
  }
  if (shown < holders.size())
    text += fmt::format("  ... and {} more (--tensors shows all)\n", holders.size() - shown);
  return text +
         fmt::format("  {:<40} {:>6} {:>8} {:>11}\n", "sum", sum.files, sum.pieces, bytes_text(sum.bytes));
}

}  // namespace

SectionTotals totals_of(const Manifest& manifest, Section section) {
  SectionTotals totals;
  for (const CheckpointTensor& t : manifest.tensors) {
    if (section_of(manifest, t) != section) continue;
    ++totals.tensors;
    totals.elements += numel_of(t.shape);
    totals.bytes += bytes_of(t);
  }
  return totals;
}

std::optional<int> rank_of(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  constexpr std::string_view kPrefix = "shard-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int number = 0;
  const char* const first = name.data() + kPrefix.size();
  const auto [end, error] = std::from_chars(first, name.data() + name.size(), number);
  if (error != std::errc() || number < 1 || !std::string_view(end).starts_with("-model-"))
    return std::nullopt;
  return number - 1;
}

std::vector<HolderTotals> holders_of(const Manifest& manifest) {
  std::vector<int64_t> pieces(manifest.files.size()), bytes(manifest.files.size());
  for (const CheckpointTensor& t : manifest.tensors) {
    for (const CheckpointPiece& p : t.pieces) {
      ++pieces[static_cast<size_t>(p.file)];
      bytes[static_cast<size_t>(p.file)] += numel_of(p.box.size) * size_of(t.dtype);
    }
  }
  std::map<int, HolderTotals> ranks;
  std::vector<HolderTotals> unknown;
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const std::string& path = manifest.files[i].path;
    const std::optional<int> rank = rank_of(path);
    HolderTotals& h = rank ? ranks[*rank] : unknown.emplace_back();
    if (h.files++ == 0) h.path = path;
    h.rank = rank;
    h.pieces += pieces[i];
    h.bytes += bytes[i];
  }
  std::vector<HolderTotals> all;
  for (auto& [rank, h] : ranks) all.push_back(std::move(h));
  all.insert(all.end(), unknown.begin(), unknown.end());
  return all;
}

std::string module_of(Section section, const std::string& name) {
  std::string_view rest = parameter_part(section, name);
  if (section == Section::optim)
    rest =
        rest.substr(0, rest.rfind('.') == std::string_view::npos ? 0 : rest.rfind('.'));  // the state's key
  for (size_t at = 0; at < rest.size();) {
    const size_t end = std::min(rest.find('.', at), rest.size());
    const std::string_view part = rest.substr(at, end - at);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos && end < rest.size())
      return std::string(rest.substr(0, end));
    at = end + 1;
  }
  const size_t last = rest.rfind('.');
  return std::string(rest.substr(0, last == std::string_view::npos ? 0 : last));
}

void inspect(const InspectOptions& options, const Console& console) {
  const Source source = open_source(options.path, console.err);
  if (options.json) {
    write_inspect_json(console.out, source);
  } else {
    const Manifest& m = source.reader.manifest();
    console.out << source.title << '\n'
                << training_text(m, options.tensors) << section_text(m, Section::model, options.tensors)
                << tied_text(m) << section_text(m, Section::optim, options.tensors) << not_finite_text(m)
                << holders_text(m, options.tensors);
  }
  console.finish();
}

}  // namespace sherd::tools
