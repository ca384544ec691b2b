#include <sherd/optim/routing.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <map>
#include <string_view>

#include <sherd/fsdp/name_pattern.h>

namespace sherd {
namespace {

NamePattern compile(const std::string& pattern) {
  try {
    return NamePattern(pattern);
  } catch (const InvalidArgument& e) {
    throw InvalidArgument(fmt::format("routing pattern {}", e.what()));
  }
}

// Returns the roles of all parameters. Global shapes: every tensor-parallel rank gets the same answer.
std::vector<RoleGuess> roles_of(ModuleBase& root) {
  const auto params = root.named_parameters();
  std::vector<RoleQuestion> model;
  for (auto& [name, p] : params) model.push_back({name, p.global_shape(), !p.row_blocks().empty()});
  size_t next = 0;  // modules are visited in the order of the names
  root.visit([&](const std::string& module, ModuleBase& m) {
    for (auto& held : m.own_parameters()) {
      if (next < params.size() && params[next].second == held) {
        ++next;
        continue;
      }
      const auto first =
          std::find_if(params.begin(), params.end(), [&](auto& p) { return p.second == held; });
      model[static_cast<size_t>(first - params.begin())].tied.push_back(
          module.empty() ? held.name() : module + "." + held.name());
    }
  });
  return guess_roles(model);
}

/// Matches the name in every layer. `dots` false: they are not escaped and match any character, which is
/// readable.
std::string pattern_for(const std::string& name, bool dots = false) {
  const std::string special = dots ? "^$\\*+?()[]{}|." : "^$\\*+?()[]{}|";
  std::string pattern = "^";
  for (size_t i = 0; i < name.size(); ++i) {
    if (std::isdigit(static_cast<unsigned char>(name[i]))) {
      if (!pattern.ends_with("[0-9]+")) pattern += "[0-9]+";
    } else {
      if (special.find(name[i]) != std::string::npos) pattern += '\\';
      pattern += name[i];
    }
  }
  return pattern + "$";
}

// `first`, then what else is in the routes, as it comes there.
std::vector<Algorithm> algorithms_of(const std::vector<Route>& routes, std::vector<Algorithm> first) {
  for (auto& r : routes)
    if (std::find(first.begin(), first.end(), r.algorithm) == first.end()) first.push_back(r.algorithm);
  return first;
}

/// Ambiguous guesses. Parameters whose names differ by layer numbers alone share one line.
class Doubts {
 public:
  explicit Doubts(const Algorithm& hidden) : hidden_(hidden) {}
  void add(const Route& r) {
    const std::string pattern = pattern_for(r.name);
    const auto [it, fresh] = index_.try_emplace(pattern, all_.size());
    if (fresh) all_.push_back({pattern, r.name, r.reason, 0});
    ++all_[it->second].count;
  }
  /// @param routes all, which the rules must tell apart
  std::vector<std::string> lines(const std::vector<Route>& routes) const {
    std::vector<std::string> lines;
    for (auto& d : all_) {
      const auto matches_others = [&](const NamePattern& pattern) {
        return std::any_of(routes.begin(), routes.end(), [&](const Route& r) {
          return pattern.matches(r.name) && pattern_for(r.name) != d.pattern;
        });
      };
      // A name of hundreds of bytes may make a pattern that no rule may have.
      const bool exact = d.pattern.size() > NamePattern::kMostBytes || matches_others(compile(d.pattern));
      lines.push_back(
          fmt::format("'{}'{}: {}; if {} hidden {}, add to RoutingOptions::rules '{}={}'", d.first,
                      d.count == 1 ? "" : fmt::format(" and {} more like it", d.count - 1), d.reason,
                      d.count == 1 ? "it is a" : "they are", d.count == 1 ? "matrix" : "matrices",
                      exact ? pattern_for(d.first, true) : d.pattern, name_of(hidden_)));
    }
    return lines;
  }

 private:
  struct Doubt {
    std::string pattern, first, reason;
    int count;
  };
  Algorithm hidden_;  // the one that hidden matrices go to
  std::vector<Doubt> all_;
  std::map<std::string, size_t> index_;
};

}  // namespace

Routing route(ModuleBase& root, const RoutingOptions& options) {
  const NamePattern not_hidden = compile(options.not_hidden);
  std::vector<NamePattern> patterns;
  std::vector<std::string> wrong;
  for (auto& rule : options.rules) {
    patterns.push_back(compile(rule.pattern));
    if (const auto problems = problems_of(rule.settings); !problems.empty())
      wrong.push_back(fmt::format("'{}': {}", rule.pattern, fmt::join(problems, ", ")));
  }
  if (!wrong.empty()) throw InvalidArgument(fmt::format("routing rules: {}", fmt::join(wrong, "; ")));

  Routing routing;
  // Ambiguous guesses are used and reported as warnings; a rule for them silences the warning.
  Doubts doubts(options.optimizer);
  routing.tied = root.tied_names();
  std::vector<bool> used(patterns.size(), false);
  const std::vector<RoleGuess> roles = roles_of(root);
  size_t next = 0;
  for (auto& [name, param] : root.named_parameters()) {
    const RoleGuess& guess = roles[next++];
    if (!param.trainable()) continue;
    Route r{name, param, Algorithm::adamw, false, guess.role, "", {}};
    // Every rank takes the same decisions: names, shapes and options are the same.
    const size_t dims = param.shape().size();
    const bool matrix = dims == 2 || dims == 3;  // of three dimensions: a stack of matrices
    // The first matching rule wins. It may set an algorithm, settings, or both.
    size_t hit = 0;
    while (hit < patterns.size() && !patterns[hit].matches(name)) ++hit;
    const RoutingRule* rule = hit < patterns.size() ? &options.rules[hit] : nullptr;
    if (rule != nullptr) {
      used[hit] = true;
      r.settings = rule->settings;
    }
    if (rule != nullptr && rule->algorithm) {
      r.algorithm = *rule->algorithm;
      r.reason = fmt::format("rule '{}'", rule->pattern);
      if (r.algorithm.matrices_only() && !matrix)
        throw InvalidArgument(
            fmt::format("routing rule '{}' sends '{}' of shape {} to {}, which updates matrices (and "
                        "stacks of them) only",
                        rule->pattern, name, to_string(param.shape()), title_of(r.algorithm)));
      // Without a rule the decision falls in this order: an optimizer for all shapes, the shape, not_hidden,
      // the role.
    } else if (!options.optimizer.matrices_only()) {
      r.algorithm = options.optimizer;
      r.reason = fmt::format("{} for all", title_of(r.algorithm));
    } else if (!matrix) {
      r.reason = "not a matrix";
    } else if (!options.not_hidden.empty() && not_hidden.matches(name)) {
      r.reason = fmt::format("not_hidden '{}'", options.not_hidden);
    } else {
      if (guess.role == Role::hidden) r.algorithm = options.optimizer;
      r.reason = guess.evidence;
      if (guess.ambiguous) doubts.add(r);
    }
    if (rule != nullptr && !rule->algorithm) r.reason += fmt::format("; rule '{}'", rule->pattern);
    if (const std::string set = to_string(r.settings); !set.empty()) r.reason += ": " + set;
    // Vectors and biases do not decay, as in most published recipes.
    r.decays = dims >= 2 && guess.role != Role::bias;
    // The cut tells the layout which rows must stay together, before fully_shard() of the root.
    param.set_cut(r.algorithm.cut());
    if (r.settings.master) param.set_master(*r.settings.master);
    if (r.settings.master_place) param.set_master_place(*r.settings.master_place);
    routing.routes.push_back(std::move(r));
  }
  routing.warnings = doubts.lines(routing.routes);
  // An unused rule is most often a misspelt pattern.
  std::vector<std::string> idle;
  for (size_t i = 0; i < used.size(); ++i)
    // A rule that an earlier one hides counts as unused, too.
    if (!used[i]) idle.push_back(options.rules[i].pattern);
  if (!idle.empty())
    throw InvalidArgument(fmt::format(
        "routing rules that decide about no parameter (no trainable one matches, or earlier rules "
        "took all): '{}'",
        fmt::join(idle, "', '")));
  return routing;
}

Routing Routing::part(const std::function<bool(const Route&)>& takes) const {
  Routing some;
  // A partial routing lets other optimizers of the root take the remaining parameters.
  some.partial = true;
  std::copy_if(routes.begin(), routes.end(), std::back_inserter(some.routes), takes);
  if (some.routes.empty())
    throw InvalidArgument(fmt::format("Routing::part() takes none of the {} routes", routes.size()));
  for (auto& t : tied)
    if (std::any_of(some.routes.begin(), some.routes.end(),
                    [&](const Route& r) { return r.name == t.second; }))
      some.tied.push_back(t);
  return some;
}

Routing Routing::part(const std::string& pattern) const {
  const NamePattern regex = compile(pattern);
  const auto matches = [&](const Route& r) { return regex.matches(r.name); };
  if (std::none_of(routes.begin(), routes.end(), matches))
    throw InvalidArgument(
        fmt::format("Routing::part('{}') matches the name of none of the {} routes", pattern, routes.size()));
  return part(matches);
}

Routing Routing::part(const std::vector<Parameter>& params) const {
  std::vector<std::string> unknown;
  for (const Parameter& p : params)
    if (std::none_of(routes.begin(), routes.end(), [&](const Route& r) { return r.param == p; }))
      unknown.push_back(p.name());
  if (!unknown.empty())
    throw InvalidArgument(fmt::format("Routing::part(): no route of: {}", fmt::join(unknown, ", ")));
  return part(
      [&](const Route& r) { return std::find(params.begin(), params.end(), r.param) != params.end(); });
}

std::string Routing::summary() const {
  std::string text;
  for (const Algorithm& a : algorithms_of(routes, {Algorithm::muon, Algorithm::adamw})) {
    text += fmt::format("{}{}:", text.empty() ? "" : "; ", name_of(a));
    for (auto& r : routes)
      if (r.algorithm == a) text += " " + r.name;
  }
  return text;
}

namespace {

/// Parameters of one line of the table: their names differ in numbers alone.
struct Row {
  std::string pattern;  // "blocks.*.up.weight"
  const Route* first;
  std::vector<int64_t> numbers;  // in place of the only star

  std::string name() const {
    if (numbers.size() < 2 || pattern.find('*') != pattern.rfind('*'))
      return numbers.size() == 1 ? first->name : pattern;
    const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
    if (*high - *low + 1 != static_cast<int64_t>(numbers.size())) return pattern;
    std::string text = pattern;
    return text.replace(text.find('*'), 1, fmt::format("[{}-{}]", *low, *high));
  }
};

struct NumberedName {
  std::string pattern;  // as Row's
  int64_t number;       // in place of the first star; -1 without one
};

// Returns the name with a star for each list index, a number of at most nine digits between dots.
NumberedName without_indices(std::string_view name) {
  NumberedName n{"", -1};
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    int64_t number = -1;
    if (part.size() <= 9 && part.find_first_not_of("0123456789") == part.npos)
      std::from_chars(part.data(), part.data() + part.size(), number);
    if (n.number < 0) n.number = number;
    if (begin > 0) n.pattern += '.';
    n.pattern += number < 0 ? part : "*";
    begin = end + 1;
  }
  return n;
}

// Returns the lines of the table: routes whose names differ in list indices alone share one, if shape,
// optimizer and reason are equal.
std::vector<Row> rows_of(const std::vector<Route>& routes) {
  std::vector<Row> rows;
  for (const Route& r : routes) {
    const NumberedName name = without_indices(r.name);
    const auto found = std::find_if(rows.begin(), rows.end(), [&](const Row& row) {
      return row.pattern == name.pattern && row.first->algorithm == r.algorithm &&
             row.first->reason == r.reason && row.first->param.global_shape() == r.param.global_shape();
    });
    if (found == rows.end()) {
      rows.push_back({name.pattern, &r, {name.number}});
    } else {
      found->numbers.push_back(name.number);
    }
  }
  return rows;
}

}  // namespace

std::string Routing::format() const {
  constexpr size_t kMostRows = 10;
  std::vector<Row> rows = rows_of(routes);
  const size_t left_out = rows.size() > kMostRows ? rows.size() - (kMostRows - 1) : 0;
  rows.resize(rows.size() - left_out, Row{"", nullptr, {}});
  size_t width = 9, update = 6;
  std::map<Algorithm, int64_t> elements;
  for (auto& r : routes) elements[r.algorithm] += numel_of(r.param.global_shape());
  for (auto& row : rows) {
    width = std::max(width, row.name().size());
    update = std::max(update, row.first->algorithm.name().size());
  }
  std::string out =
      fmt::format("{:<{}}  {:>14}  {:<{}}  {}\n", "parameter", width, "shape", "update", update, "why");
  for (auto& row : rows)
    out += fmt::format("{:<{}}  {:>14}  {:<{}}  {}\n", row.name(), width,
                       to_string(row.first->param.global_shape()), name_of(row.first->algorithm), update,
                       row.first->reason);
  if (left_out > 0) out += fmt::format("and {} more kinds of parameters\n", left_out);
  for (auto& [other, first] : tied) out += fmt::format("{} = {} (tied)\n", other, first);
  std::string counts;
  for (const Algorithm& a : algorithms_of(routes, {Algorithm::adamw, Algorithm::muon}))
    counts += counts.empty() ? fmt::format("{} updates {} elements", title_of(a), elements[a])
                             : fmt::format(", {} {}", title_of(a), elements[a]);
  out += counts;
  for (auto& w : warnings) out += "\nwarning: " + w;
  return out;
}

}  // namespace sherd
