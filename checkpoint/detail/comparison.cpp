#include <sherd/checkpoint/detail/comparison.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <sherd/base/printable.h>
#include <sherd/checkpoint/detail/state_names.h>
#include <sherd/checkpoint/detail/stored_codes.h>
#include <sherd/checkpoint/detail/widen.h>

namespace sherd {
namespace {

/// Parts that a wrapper of PyTorch adds to the names of a state dict.
struct Wrapper {
  std::string_view part, of, inner;
};
constexpr Wrapper kWrappers[] = {
    {"_orig_mod.", "torch.compile", "model._orig_mod"},
    {"module.", "DistributedDataParallel", "model.module"},
    {"_fsdp_wrapped_module.", "FSDP", "the model by get_model_state_dict()"},
    {"_checkpoint_wrapped_module.", "checkpoint_wrapper", "the model before it is wrapped"}};

std::string without_part(std::string name, std::string_view part) {
  for (size_t at = 0; (at = name.find(part, at)) != name.npos;)
    if (at == 0 || name[at - 1] == '.')
      name.erase(at, part.size());
    else
      at += part.size();
  return name;
}

/// The lists of everything that does not fit.
class Comparison {
 public:
  Comparison(std::string source, std::span<const CheckpointTensor> offered, const std::vector<Wanted>& all,
             const LoadOptions& options, size_t most_names, bool reads_codes);

  void require_fit() const;
  void report(LoadReport& report) const;

 private:
  void compare(const Wanted& w, const CheckpointTensor& t, const StoredScales& scales);
  /// Returns whether it is a count that only 16-bit forms have (WholeMatrices::counters()).
  static bool is_form_count(Section section, const std::string& name, const Shape& shape) {
    return section == Section::optim && name.ends_with(".updates") && shape == Shape{1};
  }
  static bool is_average(const std::string& name) { return name.ends_with(".ema"); }
  std::string names(const std::vector<std::string>& list) const;
  std::string explain_state() const;
  std::string explain_wrapper() const;

  std::string source_;
  const LoadOptions& options_;
  size_t most_names_;
  bool reads_codes_;
  std::vector<std::string> missing_, unexpected_, other_, missing_state_, unexpected_state_, other_state_;
  std::map<std::pair<DType, DType>, int> forms_;  // tensors by the dtype that is stored and the run's
  std::map<std::pair<DType, DType>, std::string> first_form_;
  std::vector<std::string> missing_counts_, unexpected_counts_;  // is_form_count()
  std::vector<std::string> missing_averages_;                    // which restart from the weights
  std::set<std::string> needs_;                                  // parameters whose state is missing
  size_t needed_ = 0;                                            // state tensors of the run, without those
};

Comparison::Comparison(std::string source, std::span<const CheckpointTensor> offered,
                       const std::vector<Wanted>& all, const LoadOptions& options, size_t most_names,
                       bool reads_codes)
    : source_(std::move(source)), options_(options), most_names_(most_names), reads_codes_(reads_codes) {
  using Key = std::pair<Section, std::string_view>;
  std::map<Key, const CheckpointTensor*> by_name;
  for (const CheckpointTensor& t : offered) by_name.emplace(Key(t.section, t.name), &t);
  std::set<Key> known;
  for (const Wanted& w : all) {
    if (w.section == Section::optim && !w.averages_weights) ++needed_;
    bool found = false;
    const auto look = [&](const std::string& name) {
      known.emplace(w.section, name);
      const auto at = by_name.find({w.section, name});
      if (at == by_name.end()) return;
      const auto find_scales = [&](const std::string& of) -> const CheckpointTensor* {
        const auto scale = by_name.find({w.section, of});
        return scale == by_name.end() ? nullptr : scale->second;
      };
      const StoredScales scales = reads_codes && w.section == Section::optim && w.rests()
                                      ? scales_of(*at->second, find_scales)
                                      : StoredScales();
      if (scales.tensor != nullptr) known.emplace(w.section, scales.tensor->name);
      compare(w, *at->second, scales);
      found = true;
    };
    look(w.name);
    for (const std::string& name : w.tied) look(name);
    if (found) continue;
    if (w.averages_weights) {
      missing_averages_.push_back(w.name);
      continue;
    }
    if (is_form_count(w.section, w.name, w.shape)) {
      missing_counts_.push_back(w.name);
      continue;
    }
    (w.section == Section::model ? missing_ : missing_state_).push_back(w.name);
    if (w.section == Section::optim) needs_.insert(w.param.name());
  }
  for (const CheckpointTensor& t : offered) {
    const bool asked = t.section == Section::model ? options.model : options.optimizer;
    if (!asked || known.contains({t.section, t.name})) continue;
    (t.section == Section::model                 ? unexpected_
     : is_form_count(t.section, t.name, t.shape) ? unexpected_counts_
                                                 : unexpected_state_)
        .push_back(t.name);
  }
}

void Comparison::compare(const Wanted& w, const CheckpointTensor& t, const StoredScales& scales) {
  const bool f32 = w.rests() || w.local.dtype() == DType::f32;
  // Dicts have the values of codes.
  const DType run = w.rest.quantized() && !reads_codes_ ? DType::f32 : w.dtype();
  std::vector<std::string>& other = w.section == Section::model ? other_ : other_state_;
  if (t.shape != w.shape) {
    other.push_back(fmt::format("'{}' has shape {} where the run has {}", t.name, to_string(t.shape),
                                to_string(w.shape)));
  } else if (f32 && !widens_to_f32(t.dtype) && scales.tensor == nullptr) {
    const bool codes = reads_codes_ && size_of(t.dtype) == 1 && w.section == Section::optim;
    other.push_back(
        codes ? fmt::format("'{}' is {} without f32 scales for blocks of its rows", t.name, name_of(t.dtype))
              : fmt::format("'{}' is {}: only f32, bf16 and f16 are read", t.name, name_of(t.dtype)));
  } else if (w.rests() && t.dtype != run && options_.optimizer) {
    ++forms_[{t.dtype, run}];
    first_form_.emplace(std::pair(t.dtype, run), t.name);
  } else if (!f32 && t.dtype != w.local.dtype()) {
    other.push_back(fmt::format("'{}' is {} where the run's buffer is {}", t.name, name_of(t.dtype),
                                name_of(w.local.dtype())));
  }
}

void Comparison::require_fit() const {
  std::vector<std::string> problems;
  const auto say = [&](const char* what, const std::vector<std::string>& list) {
    if (!list.empty()) problems.push_back(fmt::format("{}: {}", what, names(list)));
  };
  const std::string wrapper = options_.allow_missing ? "" : explain_wrapper();
  if (!wrapper.empty()) {
    problems.push_back(wrapper);  // all other names follow from it
  } else {
    if (!options_.allow_missing) say("missing in it", missing_);
    if (!options_.allow_unexpected) say("unknown to the run", unexpected_);
    // What is there in the place of what is missing.
    if (options_.allow_unexpected && !problems.empty()) say("it has", unexpected_);
    say("different", other_);
  }
  const bool other_model = !problems.empty();
  bool explains = false;  // routing
  // Optimizer state of another model differs with the parameters; naming it, too, hides them.
  if (!other_model) {
    say("different", other_state_);
    const char* const remedy =
        "(FullyShardOptions::master, OptimizerOptions::state_dtype, OptimizerOptions::ema_dtype): use the "
        "checkpoint's forms, or convert it (LoadOptions::convert_forms)";
    const size_t others = problems.size();
    for (const auto& [dtypes, count] : forms_)
      if (!options_.convert_forms)
        problems.push_back(fmt::format(
            "{} tensors such as '{}' are stored in {} and the run keeps them in {} {}", count,
            printable(first_form_.at(dtypes)), name_of(dtypes.first), name_of(dtypes.second), remedy));
    const bool other_state = !missing_state_.empty() || !unexpected_state_.empty();
    const std::vector<std::string>& counts = missing_counts_.empty() ? unexpected_counts_ : missing_counts_;
    if (problems.empty() && !other_state && !counts.empty() && !options_.convert_forms &&
        !options_.allow_new_state)
      problems.push_back(
          fmt::format("only one of checkpoint and run has weights or momentum in 16 or 8 bits of '{}' {}",
                      printable(counts.front()), remedy));
    // Another form has other counts, which say nothing about the routing.
    if (problems.size() == others && !options_.allow_new_state) {
      say("optimizer state missing in it", missing_state_);
      say("optimizer state unknown to the run", unexpected_state_);
      explains = other_state;
    }
  }
  if (problems.empty()) return;
  if (!options_.cause.empty()) problems.insert(problems.begin(), options_.cause);
  std::string text = fmt::format("{} does not fit the run: {}", source_, fmt::join(problems, "; "));
  if (other_model) {
    if (options_.cause.empty() && wrapper.empty())
      text += "; these are tensors of another model: build that model, or name weights of this one";
  } else if (explains) {
    text += explain_state();
  }
  throw InvalidArgument(text);
}

// Names what a wrapper of PyTorch has added to the names of tensors that are missing without it.
std::string Comparison::explain_wrapper() const {
  const std::set<std::string_view> missing(missing_.begin(), missing_.end());
  std::vector<const Wrapper*> found;
  std::string example;
  for (size_t i = 0; i < unexpected_.size() && found.empty(); ++i) {
    const std::string& name = unexpected_[i];
    std::string plain = name;
    std::vector<const Wrapper*> of_name;
    for (const Wrapper& w : kWrappers) {
      std::string shorter = without_part(plain, w.part);
      if (shorter != plain) of_name.push_back(&w);
      plain = std::move(shorter);
    }
    if (of_name.empty() || !missing.contains(plain)) continue;
    found = of_name;
    example = fmt::format("'{}' where the run has '{}'", printable(name), printable(plain));
  }
  if (found.empty()) return "";
  std::vector<std::string> parts, inner;
  for (const Wrapper* w : found) {
    parts.push_back(fmt::format("'{}' of {}", w->part, w->of));
    inner.emplace_back(w->inner);
  }
  return fmt::format(
      "names of its tensors contain {}: {}; save the state dict of the module inside ({}), or take this part "
      "out of the names",
      fmt::join(parts, " and "), example, fmt::join(inner, ", "));
}

void Comparison::report(LoadReport& report) const {
  report.started_anew = missing_state_;
  report.left_out = unexpected_state_;
  report.averages_restarted = missing_averages_;
  report.missing = missing_;
  report.unexpected = unexpected_;
  for (const auto& [dtypes, count] : forms_)
    report.converted.push_back(fmt::format("{} tensors of the checkpoint were converted from {} to {}", count,
                                           name_of(dtypes.first), name_of(dtypes.second)));
}

// Lists some of the names and counts the rest.
std::string Comparison::names(const std::vector<std::string>& list) const {
  const size_t shown = most_names_ == 0 || list.size() <= most_names_ + 1 ? list.size() : most_names_;
  std::string text;
  for (size_t i = 0; i < shown; ++i) text += (i == 0 ? "" : ", ") + printable(list[i]);
  return shown == list.size() ? text : fmt::format("{} and {} more", text, list.size() - shown);
}

// Names the parameters that another optimizer updates now than when the state was saved.
std::string Comparison::explain_state() const {
  if (missing_state_.empty() && std::ranges::all_of(unexpected_state_, is_average))
    return "; it has averages of weights and the run keeps none: keep them (OptimizerOptions::ema_decay), or "
           "leave them out (LoadOptions::allow_new_state)";
  std::set<std::string> moved;
  for (const std::string& name : unexpected_state_) {
    const std::string_view rest = std::string_view(name).substr(std::min(name.size(), kStatePrefix.size()));
    const std::string param(rest.substr(0, rest.rfind('.')));
    if (needs_.contains(param)) moved.insert(param);
  }
  std::string text;
  if (!moved.empty())
    text += fmt::format(
        "; routing has changed: AdamW keeps exp_avg, exp_avg_sq and step, Muon keeps momentum_buffer, and "
        "neither "
        "can use the other's; this concerns {}",
        names({moved.begin(), moved.end()}));
  if (missing_state_.size() + missing_counts_.size() == needed_)
    return text +
           "; it holds no state for this optimizer: load the model only (LoadOptions::optimizer = false)";
  return text +
         "; route parameters as the run that saved it did, or allow new state "
         "(LoadOptions::allow_new_state): "
         "what is missing starts from zero, the rest is left out";
}

}  // namespace

void require_fit(const std::string& source, std::span<const CheckpointTensor> offered,
                 const std::vector<Wanted>& all, const LoadOptions& options, LoadReport& report,
                 size_t most_names, bool reads_codes) {
  const Comparison comparison(source, offered, all, options, most_names, reads_codes);
  comparison.require_fit();
  comparison.report(report);
}

}  // namespace sherd
