#include <sherd/optim/routing.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <regex>

namespace sherd {
namespace {

std::regex compile(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& e) {
    throw InvalidArgument(
        fmt::format("routing pattern '{}' is not a regular expression: {}", pattern, e.what()));
  }
}

}  // namespace

const char* name_of(Algorithm a) { return a == Algorithm::muon ? "muon" : "adamw"; }

Algorithm parse_algorithm(std::string_view name) {
  if (name == "adamw") return Algorithm::adamw;
  if (name == "muon") return Algorithm::muon;
  throw InvalidArgument(fmt::format("optimizer '{}' is unknown; use adamw or muon", name));
}

Routing route(Module& root, const RoutingOptions& options) {
  const std::regex not_hidden = compile(options.not_hidden);
  const std::regex bias = compile(R"((^|\.)bias$)"), router(R"((^|\.)router(\.|$))");
  std::vector<std::regex> patterns;
  for (auto& rule : options.rules) patterns.push_back(compile(rule.pattern));

  Routing routing;
  std::vector<bool> used(patterns.size(), false);
  for (auto& [name, param] : root.named_parameters()) {
    if (!param.trainable()) continue;
    Route r{name, param, Algorithm::adamw, false, ""};
    const size_t dims = param.shape().size();
    const bool matrix = dims == 2 || dims == 3;  // of three dimensions: a stack of matrices
    size_t hit = 0;
    while (hit < patterns.size() && !std::regex_search(name, patterns[hit])) ++hit;
    if (hit < patterns.size()) {
      used[hit] = true;
      r.algorithm = options.rules[hit].algorithm;
      r.reason = fmt::format("rule '{}'", options.rules[hit].pattern);
      if (r.algorithm == Algorithm::muon && !matrix)
        throw InvalidArgument(
            fmt::format("routing rule '{}' sends '{}' of shape {} to Muon, which updates matrices (and "
                        "stacks of them) only",
                        options.rules[hit].pattern, name, to_string(param.shape())));
    } else if (options.optimizer == Algorithm::adamw) {
      r.reason = "AdamW for all";
    } else if (!matrix) {
      r.reason = "not a matrix";
    } else if (std::regex_search(name, not_hidden)) {
      r.reason = std::regex_search(name, bias)     ? "bias"
                 : std::regex_search(name, router) ? "router"
                                                   : "embedding, head or norm";
    } else {
      r.algorithm = Algorithm::muon;
      r.reason = dims == 3 ? "stack of hidden matrices" : "hidden matrix";
    }
    r.decays = dims >= 2 && !std::regex_search(name, bias);
    param.set_cut(r.algorithm == Algorithm::muon ? CutClass::row : CutClass::element);
    routing.routes.push_back(std::move(r));
  }
  std::vector<std::string> idle;
  for (size_t i = 0; i < used.size(); ++i)
    if (!used[i]) idle.push_back(options.rules[i].pattern);
  if (!idle.empty())
    throw InvalidArgument(fmt::format(
        "routing rules that decide about no parameter (no trainable one matches, or earlier rules "
        "took all): '{}'",
        fmt::join(idle, "', '")));
  return routing;
}

std::string Routing::summary() const {
  std::string text;
  for (const Algorithm a : {Algorithm::muon, Algorithm::adamw}) {
    text += fmt::format("{}{}:", text.empty() ? "" : "; ", name_of(a));
    for (auto& r : routes)
      if (r.algorithm == a) text += " " + r.name;
  }
  return text;
}

std::string Routing::format() const {
  size_t width = 9;
  int64_t elements[2] = {0, 0};
  for (auto& r : routes) width = std::max(width, r.name.size());
  std::string out = fmt::format("{:<{}}  {:>14}  {:<6}  {}\n", "parameter", width, "shape", "update", "why");
  for (auto& r : routes) {
    out += fmt::format("{:<{}}  {:>14}  {:<6}  {}\n", r.name, width, to_string(r.param.global_shape()),
                       name_of(r.algorithm), r.reason);
    elements[r.algorithm == Algorithm::muon] += numel_of(r.param.global_shape());
  }
  return out + fmt::format("AdamW updates {} elements, Muon {}", elements[0], elements[1]);
}

}  // namespace sherd
