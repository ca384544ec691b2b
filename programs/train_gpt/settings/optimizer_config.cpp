#include "train_gpt/settings/optimizer_config.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include <sherd/base/printable.h>
#include <sherd/fsdp/name_pattern.h>
#include <sherd/optim/muon/coefficients.h>
#include <sherd/optim/normuon.h>
#include <sherd/optim/soap.h>

#include "train_gpt/settings/settings.h"

namespace train_gpt {
namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<int> restarts(const Settings& c) {
  std::vector<int> steps;
  for (const std::string& part : split(c.ns_restart, ',')) {
    int step = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), step);
    if (error != std::errc() || end != part.data() + part.size() ||
        (!steps.empty() && step <= steps.back()) || step < 1)
      throw sherd::InvalidArgument(
          fmt::format("--ns-restart '{}': give increasing numbers of steps such as 2 or 2,4", c.ns_restart));
    steps.push_back(step);
  }
  return steps;
}

sherd::Algorithm algorithm_named(const std::string& name) {
  for (const sherd::Algorithm& a :
       {sherd::Algorithm::adamw, sherd::Algorithm::muon, sherd::NorMuon::kName, sherd::Soap::kName})
    if (a.name() == name) return a;
  throw sherd::InvalidArgument(
      fmt::format("optimizer '{}' is unknown; use adamw, muon, normuon or soap", sherd::printable(name)));
}

/// Each rule's compiled pattern has up to 256 KiB, and a checkpoint's rules may be a stranger's.
constexpr size_t kMostRules = 1000;

std::vector<sherd::RoutingRule> routing_rules(const std::string& text) {
  std::vector<sherd::RoutingRule> rules;
  for (const std::string& rule : split(text, ';')) {
    const size_t equals = rule.rfind('=');
    if (equals == std::string::npos || equals == 0)
      throw sherd::InvalidArgument(
          fmt::format("--route '{}': write REGEX=OPTIMIZER, such as REGEX=muon, several separated by ';'",
                      sherd::printable(rule)));
    rules.push_back({rule.substr(0, equals), algorithm_named(rule.substr(equals + 1))});
  }
  return rules;
}

template <class F>
void collect(std::vector<std::string>& problems, const char* flag, F f) {
  try {
    f();
  } catch (const std::exception& e) {
    const std::string what = e.what();
    problems.push_back(what.starts_with("--") ? what : fmt::format("{}: {}", flag, what));
  }
}

std::vector<std::string> muon_problems(const Settings& c) {
  std::vector<std::string> problems;
  std::vector<sherd::Coefficients> steps;
  collect(problems, "--ns-coefficients",
          [&] { steps = sherd::coefficient_steps(c.ns_coefficients, static_cast<int>(c.ns_steps)); });
  collect(problems, "--ns-restart", [&] {
    const std::vector<int> at = restarts(c);
    if (!at.empty() && c.ns_form != "gram")
      throw sherd::InvalidArgument("--ns-restart: only --ns-form gram restarts");
    if (!at.empty() && !steps.empty() && at.back() >= static_cast<int>(steps.size()))
      throw sherd::InvalidArgument(
          fmt::format("--ns-restart {}: the iteration has {} steps", c.ns_restart, steps.size()));
  });
  if (!c.ns_restart.empty() && split(c.ns_restart, ',').empty())
    problems.push_back(fmt::format("--ns-restart '{}': no number of steps", c.ns_restart));
  if (c.muon_momentum == 1) problems.push_back("--muon-momentum 1: must be less than 1");
  if (c.muon_fraction == 0) problems.push_back("--muon-fraction 0: must be greater than 0");
  if (c.muon_fraction < 1 &&
      (c.muon_mode == "gram" || c.muon_tensor == "distributed" || c.muon_momentum == 0))
    problems.push_back(
        fmt::format("--muon-fraction {}: needs whole matrices and a momentum, not --muon-mode gram, "
                    "--muon-tensor distributed or --muon-momentum 0",
                    c.muon_fraction));
  if (c.orthogonalizer == "svd" && (c.muon_mode == "gram" || c.muon_tensor == "distributed"))
    problems.push_back(
        "--orthogonalizer svd: needs whole matrices, not --muon-mode gram or --muon-tensor distributed");
  if (c.muon_working == "bf16" && (c.ns_form == "gram" || c.muon_mode == "gram" || c.muon_allow_inexact ||
                                   c.muon_tensor == "distributed"))
    problems.push_back("--muon-working bf16: Gram matrices in bf16 are numerically unsafe; use fp16 or fp32");
  return problems;
}

std::vector<std::string> normuon_problems(const Settings& c) {
  std::vector<std::string> problems;
  if (!uses(c, "normuon")) return problems;
  if (uses(c, "muon"))
    problems.push_back("--route: Muon and NorMuon have the same flags; use one of them in a run");
  if (c.muon_fraction < 1)
    problems.push_back(fmt::format("--muon-fraction {}: NorMuon normalizes all rows; use --optimizer muon",
                                   c.muon_fraction));
  if (c.muon_scale != "match_rms_adamw")
    problems.push_back(
        fmt::format("--muon-scale {}: NorMuon's updates have the RMS of match_rms_adamw; use "
                    "that, and --muon-scale-factor",
                    c.muon_scale));
  return problems;
}

sherd::MuonOptions muon_options(const Settings& c) {
  sherd::MuonOptions o;
  o.whole.momentum = static_cast<float>(c.muon_momentum);
  o.orthogonalize.method =
      c.orthogonalizer == "svd" ? sherd::Orthogonalizer::svd : sherd::Orthogonalizer::newton_schulz;
  o.orthogonalize.form = c.ns_form == "gram" ? sherd::IterationForm::gram : sherd::IterationForm::standard;
  o.orthogonalize.steps = sherd::coefficient_steps(c.ns_coefficients, static_cast<int>(c.ns_steps));
  o.orthogonalize.working = dtype_named(c.muon_working);
  o.orthogonalize.restarts = restarts(c);
  if (o.orthogonalize.form == sherd::IterationForm::gram && c.ns_restart.empty())
    o.orthogonalize.restarts = sherd::safe_restarts(o.orthogonalize.steps, o.orthogonalize.working);
  o.scale = sherd::parse_muon_scale(c.muon_scale);
  o.scale_factor = c.muon_scale_factor;
  o.fraction = c.muon_fraction;
  o.whole.decay = sherd::parse_muon_decay(c.muon_decay);
  o.whole.mode = sherd::parse_muon_mode(c.muon_mode);
  o.whole.allow_inexact = c.muon_allow_inexact;
  o.whole.tensor = sherd::parse_muon_tensor_mode(c.muon_tensor);
  o.whole.payload = dtype_named(c.muon_payload);
  o.whole.transient_bytes = c.muon_transient;
  return o;
}

sherd::SoapOptions soap_options(const Settings& c) {
  return {.constants = {.beta1 = c.adam_beta1,
                        .beta2 = c.adam_beta2,
                        .shampoo_beta = c.soap_beta,
                        .eps = c.soap_eps},
          .max_dim = c.soap_max_dim,
          .whole = {.state_weight = c.whole_balance}};
}

}  // namespace

sherd::DType dtype_named(std::string_view word) {
  if (word == "bf16") return sherd::DType::bf16;
  return word == "fp16" ? sherd::DType::f16 : sherd::DType::f32;
}

bool uses(const Settings& c, const std::string& optimizer) {
  const std::vector<std::string> rules = split(c.route, ';');
  return c.optimizer == optimizer || std::any_of(rules.begin(), rules.end(), [&](const std::string& r) {
           return r.ends_with("=" + optimizer);
         });
}

std::vector<std::string> optimizer_problems(const Settings& c) {
  std::vector<std::string> problems = muon_problems(c);
  if (!c.route.empty() && split(c.route, ';').empty())
    problems.push_back(
        fmt::format("--route '{}': no rule; write REGEX=OPTIMIZER, such as REGEX=muon", c.route));
  collect(problems, "--route", [&] {
    const std::vector<sherd::RoutingRule> rules = routing_rules(c.route);
    if (rules.size() > kMostRules)
      throw sherd::InvalidArgument(
          fmt::format("{} rules are more than {}; join names by '|'", rules.size(), kMostRules));
    for (const sherd::RoutingRule& rule : rules) (void)sherd::NamePattern(rule.pattern);
  });
  for (std::string& problem : normuon_problems(c)) problems.push_back(std::move(problem));
  if (c.soap_beta == 1) problems.push_back("--soap-beta 1: must be less than 1");
  if (c.soap_eps == 0) problems.push_back("--soap-eps 0: must be greater than 0");
  return problems;
}

std::vector<std::string> idle_optimizer_flags(const Settings& c, const sherd::GivenFlags& given) {
  std::vector<std::string> problems;
  const bool muon = uses(c, "muon") || uses(c, "normuon"), soap = uses(c, "soap");
  const auto refuse = [&](const char* title, const char* name,
                          const std::function<bool(const proto::Setting&)>& idle) {
    if (const std::string flags = given_flags(given, idle); !flags.empty())
      problems.push_back(fmt::format("{}: no parameter goes to {}; give --optimizer {}, or --route REGEX={}",
                                     flags, title, name, name));
  };
  const proto::Setting& plan = setting_of("explain_plan");
  if (!muon)
    refuse("Muon", "muon",
           [&](const proto::Setting& s) { return s.subject() == proto::MUON && !(soap && &s == &plan); });
  if (!soap) refuse("SOAP", "soap", [](const proto::Setting& s) { return s.subject() == proto::SOAP; });
  return problems;
}

sherd::OptimizerOptions optimizer_options(const Settings& c) {
  sherd::OptimizerOptions o;
  o.adamw = {.beta1 = c.adam_beta1, .beta2 = c.adam_beta2, .eps = c.adam_eps};
  o.weight_decay = c.weight_decay;
  o.skip_non_finite = c.skip_non_finite;
  o.muon = muon_options(c);
  if (uses(c, "normuon"))
    o.further.push_back(sherd::NorMuon::factory({.muon = o.muon, .beta2 = c.adam_beta2}));
  if (uses(c, "soap")) o.further.push_back(sherd::Soap::factory(soap_options(c)));
  return o;
}

sherd::RoutingOptions routing_options(const Settings& c) {
  sherd::RoutingOptions o;
  o.optimizer = algorithm_named(c.optimizer);
  o.rules = routing_rules(c.route);
  return o;
}

}  // namespace train_gpt
