#include <sherd/checkpoint/detail/stored_form.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include <sherd/base/error.h>
#include <sherd/checkpoint/format/coverage.h>

namespace sherd {
namespace {

constexpr size_t kMaxDims = 8;  // coverage_fault()

Shape without_ones(const Shape& shape) {
  Shape left;
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(left), [](int64_t n) { return n != 1; });
  return left;
}

bool is_inside(const Box& box, const Shape& shape) {
  bool inside = box.offset.size() == shape.size() && box.size.size() == shape.size();
  for (size_t d = 0; inside && d < shape.size(); ++d)
    inside = box.offset[d] >= 0 && box.size[d] >= 0 && box.offset[d] <= shape[d] - box.size[d];
  return inside;
}

// A box of a tensor without dimensions is one of [1].
Box box_of_1d(const Box& box) { return box.offset.empty() && box.size.empty() ? Box{{0}, {1}} : box; }

// Builds the form of some names; problems are collected.
class Builder {
 public:
  explicit Builder(const std::vector<Wanted>& wanted) : wanted_(wanted) {
    for (size_t i = 0; i < wanted.size(); ++i) number_.emplace(wanted[i].name, i);
  }

  StoredForm build(const StoredNames& names) {
    StoredForm form;
    for (auto& [name, pieces] : names)
      if (!number_.contains(name)) problem(name, "is not a parameter of the model");
    for (size_t i = 0; i < wanted_.size(); ++i) {
      const Wanted& w = wanted_[i];
      const auto found = names.find(w.name);
      if (found == names.end()) {
        add(form, w.name, w.shape, whole_part(i, w.shape));
        continue;
      }
      std::vector<Box> covered;
      for (const StoredPiece& piece : found->second) {
        const StoredPart part{i, box_of_1d(piece.in_parameter), box_of_1d(piece.in_tensor), piece.step};
        if (!is_inside(part.in_parameter, w.shape) || w.shape.size() > kMaxDims) {
          problem(w.name, fmt::format("has shape {}, which does not hold its box in '{}'", to_string(w.shape),
                                      piece.tensor));
          continue;
        }
        covered.push_back(part.in_parameter);
        add(form, piece.tensor, at_least_1d(piece.shape), part);
      }
      if (const auto fault = coverage_fault(w.shape, covered))
        problem(w.name, fmt::format("is covered {} times at {}", fault->times, to_string(fault->at)));
    }
    return form;
  }

  void require_none() const {
    if (!problems_.empty())
      throw InvalidArgument(fmt::format("stored names: {}", fmt::join(problems_, "; ")));
  }

 private:
  void add(StoredForm& form, const std::string& tensor, const Shape& shape, const StoredPart& part) {
    const std::string& name = wanted_[part.wanted].name;
    const auto [at, is_new] = form.tensors.try_emplace(tensor);
    if (is_new) at->second.shape = shape;
    if (at->second.shape != shape) {
      problem(name, fmt::format("is in '{}' of shape {}, which has shape {} elsewhere", tensor,
                                to_string(shape), to_string(at->second.shape)));
    } else if (part.step < 1 || shape.back() % part.step != 0 ||
               !is_inside(in_steps(part.in_tensor, part.step), in_steps(shape, part.step)) ||
               without_ones(part.in_tensor.size) != without_ones(part.in_parameter.size)) {
      problem(name, fmt::format("has a box {} that is not its box {} of '{}', which has shape {}",
                                to_string(part.in_parameter.size), to_string(part.in_tensor.size), tensor,
                                to_string(shape)));
    } else {
      at->second.parts.push_back(part);
    }
  }
  void problem(const std::string& parameter, const std::string& what) {
    problems_.push_back(fmt::format("'{}' {}", parameter, what));
  }

  const std::vector<Wanted>& wanted_;
  std::map<std::string_view, size_t> number_;
  std::vector<std::string> problems_;
};

std::string without(const std::string& prefix, const std::string& name) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

StoredForm without_prefix(const StoredForm& form, const std::string& prefix) {
  StoredForm shorter;
  for (auto& [name, tensor] : form.tensors) shorter.tensors.emplace(without(prefix, name), tensor);
  for (auto& [name, of] : form.copies) shorter.copies.emplace(without(prefix, name), without(prefix, of));
  return shorter;
}

}  // namespace

Box in_steps(const Box& box, int64_t step) {
  if (step == 1) return box;
  Box split = box;
  split.offset.back() /= step;
  split.offset.push_back(box.offset.back() % step);
  split.size.push_back(1);
  return split;
}

Shape in_steps(const Shape& whole, int64_t step) {
  if (step == 1) return whole;
  Shape split = whole;
  split.back() /= step;
  split.push_back(step);
  return split;
}

std::vector<StoredForm> candidates(const std::vector<Wanted>& wanted, const StoredForms& forms) {
  Builder builder(wanted);
  std::vector<StoredForm> all;
  for (const StoredNames& names : forms.forms) all.push_back(builder.build(names));
  all.push_back(builder.build({}));
  builder.require_none();
  for (const Wanted& w : wanted)
    for (const std::string& other : w.tied) all.back().copies.emplace(other, w.name);
  const size_t whole = all.size();
  for (size_t i = 0; i < whole; ++i) {
    for (auto& [name, of] : forms.copies)
      if (!all[i].tensors.contains(name) && all[i].tensors.contains(of)) all[i].copies.emplace(name, of);
    for (const std::string& prefix : forms.droppable_prefixes) all.push_back(without_prefix(all[i], prefix));
  }
  return all;
}

std::vector<Wanted> held_by(const StoredForms& forms, ModuleBase& root) {
  std::vector<Wanted> all = wanted(root, true, {});
  if (forms.holds) std::erase_if(all, [&](const Wanted& w) { return !forms.holds(w.name); });
  return all;
}

bool is_ignored(std::string_view name, const StoredForms& forms, const std::vector<StoredForm>& candidates) {
  const auto& ends = forms.ignored_endings;
  return std::any_of(ends.begin(), ends.end(), [&](const std::string& end) { return name.ends_with(end); }) &&
         std::none_of(candidates.begin(), candidates.end(),
                      [&](const StoredForm& form) { return form.tensors.contains(std::string(name)); });
}

bool is_part(std::string_view name, const std::vector<StoredForm>& candidates) {
  const std::string key(name);
  return std::any_of(candidates.begin(), candidates.end(), [&](const StoredForm& form) {
    return form.tensors.contains(key) || form.copies.contains(key);
  });
}

StoredForm choose(const std::vector<StoredForm>& candidates, const std::set<std::string>& offered) {
  const StoredForm* best = nullptr;
  std::pair<int64_t, int64_t> most;  // tensors that are there, and those that are missing, negative
  for (const StoredForm& form : candidates) {
    const int64_t there = std::count_if(form.tensors.begin(), form.tensors.end(),
                                        [&](const auto& t) { return offered.contains(t.first); });
    const std::pair rank(there, there - static_cast<int64_t>(form.tensors.size()));
    if (best == nullptr || rank > most) best = &form, most = rank;
  }
  StoredForm form = *best;
  for (auto& [name, of] : best->copies) {
    if (offered.contains(of) || !offered.contains(name) || !form.tensors.contains(of)) continue;
    auto tensor = form.tensors.extract(of);
    tensor.key() = name;
    form.tensors.insert(std::move(tensor));
    form.copies.erase(name);
  }
  return form;
}

std::vector<Wanted> as_wanted(const StoredForm& form, const std::vector<Wanted>& wanted) {
  std::vector<Wanted> all;
  for (auto& [name, tensor] : form.tensors) {
    if (tensor.parts.empty()) continue;
    all.push_back({Section::model, name, {}, tensor.shape, wanted[tensor.parts.front().wanted].local});
  }
  return all;
}

Box in_tensor(const StoredPart& part, const Box& box) {
  Box result = part.in_tensor;
  size_t t = 0;
  for (size_t d = 0; d < box.size.size(); ++d) {
    if (part.in_parameter.size[d] == 1) continue;
    while (part.in_tensor.size[t] == 1) ++t;
    const int64_t step = t + 1 == result.offset.size() ? part.step : 1;
    result.offset[t] += (box.offset[d] - part.in_parameter.offset[d]) * step;
    result.size[t] = box.size[d];
    ++t;
  }
  return result;
}

}  // namespace sherd
