#include "ckpt_diff.h"

#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ckpt_source.h"
#include "elements.h"
#include "tensor_stream.h"
#include "text.h"

namespace sherd::tools {
namespace {

using nlohmann::ordered_json;

struct Side {
  Source source;
  /// Tensors that were asked for, in the checkpoint's order, and by name.
  std::vector<const CheckpointTensor*> tensors;
  std::map<std::pair<Section, std::string_view>, const CheckpointTensor*> by_name;

  Side(Source s, const DiffOptions& options) : source(std::move(s)) {
    const Manifest& m = source.reader.manifest();
    for (const CheckpointTensor& t : m.tensors) {
      const Section section = section_of(m, t);
      if (section == Section::model ? !options.model : !options.optim) continue;
      tensors.push_back(&t);
      by_name.emplace(std::pair(section, std::string_view(t.name)), &t);
    }
    // Earlier versions stored a tied tensor under its first name alone.
    for (const CheckpointTensor* t : tensors)
      for (const std::string& other : t->tied)
        by_name.emplace(std::pair(section_of(m, *t), std::string_view(other)), t);
  }
  const CheckpointTensor* find(Section section, const std::string& name) const {
    const auto found = by_name.find({section, name});
    return found == by_name.end() ? nullptr : found->second;
  }
};

/// One tensor, present on at least one side.
struct Finding {
  Section section = Section::model;
  const CheckpointTensor* a = nullptr;
  const CheckpointTensor* b = nullptr;
  Difference elements;  // empty unless both are there with one shape

  bool comparable() const { return a != nullptr && b != nullptr && a->shape == b->shape; }
  bool identical() const { return comparable() && a->dtype == b->dtype && elements.differing == 0; }
  bool within(double tolerance) const { return comparable() && elements.max_relative <= tolerance; }
  const std::string& name() const { return (a != nullptr ? a : b)->name; }
};

struct Report {
  std::vector<Finding> different;
  int64_t compared = 0, elements = 0;
  bool identical = true, within = true;
};

std::vector<Finding> pairs_of(const Side& a, const Side& b) {
  std::vector<Finding> pairs;
  for (const CheckpointTensor* t : a.tensors) {
    const Section section = section_of(a.source.reader.manifest(), *t);
    pairs.push_back({section, t, b.find(section, t->name), {}});
  }
  for (const CheckpointTensor* t : b.tensors) {
    const Section section = section_of(b.source.reader.manifest(), *t);
    if (a.find(section, t->name) == nullptr) pairs.push_back({section, nullptr, t, {}});
  }
  return pairs;
}

void compare_elements(Side& a, Side& b, Finding& f, Progress& progress) {
  std::vector<char> other(
      static_cast<size_t>(std::min(kChunkElements, numel_of(f.b->shape)) * size_of(f.b->dtype)));
  ParamIndex at(0);
  stream_elements(a.source.reader, *f.a, all_of(*f.a), [&](const char* data, int64_t count) {
    b.source.reader.read(*f.b, boxes_of(f.b->shape, {at, at + count}), other.data());
    compare(data, f.a->dtype, other.data(), f.b->dtype, count, f.elements);
    at = at + count;
    progress.add(count * size_of(f.a->dtype));
  });
}

Report compare_all(Side& a, Side& b, const DiffOptions& options, const Console& console) {
  std::vector<Finding> pairs = pairs_of(a, b);
  if (pairs.empty())
    throw InvalidArgument(fmt::format("nothing to compare: neither {} nor {} has {}", options.a.string(),
                                      options.b.string(),
                                      options.model && options.optim ? "a tensor"
                                      : options.model                ? "a tensor of a model"
                                                                     : "optimizer state"));
  int64_t bytes = 0;
  for (const Finding& f : pairs) bytes += f.comparable() ? bytes_of(*f.a) : 0;
  Progress progress(console.err, console.progress, "diff", bytes);
  Report report;
  for (Finding& f : pairs) {
    if (f.comparable()) {
      compare_elements(a, b, f, progress);
      ++report.compared;
      report.elements += f.elements.elements;
    }
    report.within = report.within && f.within(options.tolerance.value_or(0));
    if (f.identical()) continue;
    report.identical = false;
    report.different.push_back(f);
  }
  return report;
}

std::string brief(const CheckpointTensor& t) {
  return fmt::format("{} {}", to_string(t.shape), name_of(t.dtype));
}

std::string finding_text(const Finding& f) {
  std::string text = "  " + printable(f.name()) + ": ";
  if (f.b == nullptr) return text + fmt::format("only in A, {}\n", brief(*f.a));
  if (f.a == nullptr) return text + fmt::format("only in B, {}\n", brief(*f.b));
  if (!f.comparable()) return text + fmt::format("{} against {}\n", brief(*f.a), brief(*f.b));
  if (f.a->dtype != f.b->dtype)
    text += fmt::format("{} against {}, ", name_of(f.a->dtype), name_of(f.b->dtype));
  const Difference& d = f.elements;
  if (d.differing == 0) return text + "equal values\n";
  return text + fmt::format("{} of {} elements differ, at most by {:.3g} ({:.3g} relative), first at {}\n",
                            d.differing, d.elements, d.max_absolute, d.max_relative,
                            to_string(index_of(f.a->shape, *d.first)));
}

std::string report_text(const Report& report, const DiffOptions& options) {
  std::string text;
  for (const Finding& f : report.different) text += finding_text(f);
  text += fmt::format("{}, {} compared: ", count_text(report.compared, "tensor"),
                      count_text(report.elements, "element"));
  if (report.identical) return text + "bit-identical\n";
  if (options.tolerance && report.within)
    return text + fmt::format("within {} relative\n", *options.tolerance);
  return text +
         fmt::format("{} different\n", count_text(static_cast<int64_t>(report.different.size()), "tensor"));
}

ordered_json finding_json(const Finding& f) {
  const auto side = [](const CheckpointTensor* t) {
    return t == nullptr ? ordered_json() : ordered_json{{"shape", t->shape}, {"dtype", name_of(t->dtype)}};
  };
  ordered_json j = {{"name", f.name()}, {"section", name_of(f.section)}, {"a", side(f.a)}, {"b", side(f.b)}};
  j["elements"] = nullptr;
  if (!f.comparable()) return j;
  const Difference& d = f.elements;
  j["elements"] = {{"differing", d.differing},
                   {"of", d.elements},
                   {"max_absolute", d.max_absolute},
                   {"max_relative", d.max_relative},
                   {"first", d.first ? ordered_json(index_of(f.a->shape, *d.first)) : ordered_json()}};
  return j;
}

ordered_json report_json(const Report& report, const DiffOptions& options, const Side& a, const Side& b) {
  ordered_json j = {{"a", a.source.reader.path().string()},
                    {"b", b.source.reader.path().string()},
                    {"identical", report.identical},
                    {"within_tolerance", options.tolerance ? ordered_json(report.within) : ordered_json()},
                    {"tensors_compared", report.compared},
                    {"elements_compared", report.elements},
                    {"different", ordered_json::array()}};
  for (const Finding& f : report.different) j["different"].push_back(finding_json(f));
  return j;
}

std::string title_of(const Source& source) {
  const Manifest& m = source.reader.manifest();
  return source.title + (m.checksums ? fmt::format(", step {}", m.training.step) : "");
}

}  // namespace

const char* const kDiffJsonHelp =
    R"(--json prints one object:
  a, b              what was read
  identical         every name, shape, dtype and bit is the same
  within_tolerance  names and shapes are the same, elements within --tolerance; null without it
  tensors_compared, elements_compared
  different[]       name, section; a and b: {shape, dtype}, null where the tensor is missing;
                    elements {differing, of, max_absolute, max_relative, first (its index)}, null where
                    shapes differ or one is missing. Infinite differences (a NaN or an infinity against
                    another value) are null.
)";

bool diff(const DiffOptions& options, const Console& console) {
  Side a(open_source(options.a, console.err), options), b(open_source(options.b, console.err), options);
  const Report report = compare_all(a, b, options, console);
  if (options.json) {
    console.out
        << report_json(report, options, a, b).dump(2, ' ', false, ordered_json::error_handler_t::replace)
        << '\n';
  } else {
    console.out << "A  " << title_of(a.source) << "\nB  " << title_of(b.source) << '\n'
                << report_text(report, options);
  }
  console.finish();
  return report.identical || (options.tolerance && report.within);
}

}  // namespace sherd::tools
