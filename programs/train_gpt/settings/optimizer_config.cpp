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
          fmt::format("'{}': give increasing numbers of steps such as 2 or 2,4", c.ns_restart));
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

/// Parts that rest on the host.
struct Offload {
  sherd::Place state = sherd::Place::device, master = sherd::Place::device;
};

Offload offload_named(const std::string& parts) {
  using enum sherd::Place;
  if (parts == "none") return {};
  if (parts == "state") return {.state = host};
  if (parts == "state,master" || parts == "master,state") return {.state = host, .master = host};
  throw sherd::InvalidArgument(fmt::format(
      "parts to offload '{}' are unknown; use none, state or state,master", sherd::printable(parts)));
}

sherd::DType state_dtype_named(const std::string& word) {
  for (const sherd::DType t : {sherd::DType::f32, sherd::DType::bf16, sherd::DType::i8})
    if (word == name_of(t)) return t;
  throw sherd::InvalidArgument(
      fmt::format("state '{}' is unknown; use f32, bf16 or i8", sherd::printable(word)));
}

/// Applies a word behind the '=' of a rule: an optimizer first, then master:FORM, state:DTYPE and offload:PARTS.
void apply_word(sherd::RoutingRule& rule, const std::string& word, bool first) {
  const auto value = [&](std::string_view key) {
    const std::string given = word.substr(key.size());
    return given == "fp32" ? "f32" : given;  // an alias, as of the flags
  };
  if (word.starts_with("master:") && !rule.settings.master)
    rule.settings.master = sherd::kMasterNames.parse("master", value("master:"));
  else if (word.starts_with("state:") && !rule.settings.state_dtype)
    rule.settings.state_dtype = state_dtype_named(value("state:"));
  else if (word.starts_with("offload:") && !rule.settings.state_place) {
    const Offload parts = offload_named(value("offload:"));
    rule.settings.state_place = parts.state;
    rule.settings.master_place = parts.master;
  } else if (first)
    rule.algorithm = algorithm_named(word);
  else
    throw sherd::InvalidArgument(
        fmt::format("'{}' after '{}=': write REGEX=OPTIMIZER/master:FORM/state:DTYPE/offload:PARTS, each "
                    "once and an optimizer first",
                    sherd::printable(word), sherd::printable(rule.pattern)));
}

std::vector<sherd::RoutingRule> routing_rules(const std::string& text) {
  std::vector<sherd::RoutingRule> rules;
  for (const std::string& rule : split(text, ';')) {
    const size_t equals = rule.rfind('=');
    const std::vector<std::string> words =
        split(equals == std::string::npos ? "" : rule.substr(equals + 1), '/');
    if (equals == 0 || words.empty())
      throw sherd::InvalidArgument(fmt::format(
          "'{}': write REGEX=OPTIMIZER, such as REGEX=muon, or REGEX=/master:f32; several separated by ';'",
          sherd::printable(rule)));
    rules.push_back({rule.substr(0, equals), {}});
    for (const std::string& word : words) apply_word(rules.back(), word, &word == &words.front());
  }
  return rules;
}

void check_muon(const Settings& c, const RuleCheck& rules) {
  std::vector<sherd::Coefficients> steps;
  if (rules.good("ns_steps"))
    rules.collect("ns_coefficients",
                  [&] { steps = sherd::coefficient_steps(c.ns_coefficients, static_cast<int>(c.ns_steps)); });
  rules.collect("ns_restart", [&] {
    const std::vector<int> at = restarts(c);
    if (!at.empty() && !steps.empty() && at.back() >= static_cast<int>(steps.size()))
      throw sherd::InvalidArgument(
          fmt::format("'{}': the iteration has {} steps", c.ns_restart, steps.size()));
    if (at.empty() && !c.ns_restart.empty())
      throw sherd::InvalidArgument(fmt::format("'{}': no number of steps", c.ns_restart));
  });
}

void check_normuon(const Settings& c, const RuleCheck& rules) {
  if (!uses(c, OptimizerWord::normuon)) return;
  if (uses(c, OptimizerWord::muon))
    rules.add("route", "--route: Muon and NorMuon have the same flags; use one of them in a run");
  if (c.muon_fraction < 1) rules.refuse("muon_fraction", "NorMuon normalizes all rows; use --optimizer muon");
  if (c.muon_scale != sherd::MuonScale::match_rms_adamw)
    rules.refuse("muon_scale",
                 "NorMuon's updates have the RMS of match_rms_adamw; use that, and --muon-scale-factor");
}

/// Refuses given flags of an optimizer that no parameter goes to. A config file may hold some for later.
void refuse_idle(const RuleCheck& rules, const char* title, const char* name,
                 const std::function<bool(const proto::Setting&)>& idle) {
  if (const std::string flags = given_flags(rules.given().flags, idle); !flags.empty())
    rules.add("optimizer",
              fmt::format("{}: no parameter goes to {}; give --optimizer {}, or --route REGEX={}", flags,
                          title, name, name));
}

sherd::MuonOptions muon_options(const Settings& c) {
  sherd::MuonOptions o;
  o.whole.momentum = static_cast<float>(c.muon_momentum);
  o.orthogonalize.method = c.orthogonalizer;
  o.orthogonalize.form = c.ns_form;
  o.orthogonalize.steps = sherd::coefficient_steps(c.ns_coefficients, static_cast<int>(c.ns_steps));
  o.orthogonalize.working = c.muon_working;
  o.orthogonalize.restarts = restarts(c);
  if (o.orthogonalize.form != sherd::IterationForm::standard && c.ns_restart.empty())
    o.orthogonalize.restarts = sherd::safe_restarts(o.orthogonalize.steps, o.orthogonalize.working);
  o.scale = c.muon_scale;
  o.scale_factor = c.muon_scale_factor;
  o.fraction = c.muon_fraction;
  o.whole.decay = c.muon_decay;
  o.whole.mode = c.muon_mode;
  o.whole.allow_inexact = c.muon_allow_inexact;
  o.whole.tensor = c.muon_tensor;
  o.whole.payload = c.muon_payload;
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

sherd::Place master_place(const Settings& c) { return offload_named(c.offload).master; }

bool offloads(const Settings& c) {
  const std::vector<sherd::RoutingRule> routes = routing_rules(c.route);
  return c.recompute == Recompute::offload || offload_named(c.offload).state == sherd::Place::host ||
         std::any_of(routes.begin(), routes.end(),
                     [](auto& r) { return r.settings.state_place == sherd::Place::host; });
}

bool quantizes_state(const Settings& c) {
  const std::vector<sherd::RoutingRule> routes = routing_rules(c.route);
  return c.state_dtype == sherd::DType::i8 || std::any_of(routes.begin(), routes.end(), [](auto& r) {
           return r.settings.state_dtype == sherd::DType::i8;
         });
}

bool uses(const Settings& c, OptimizerWord optimizer) {
  const std::vector<std::string> rules = split(c.route, ';');
  return c.optimizer == optimizer || std::any_of(rules.begin(), rules.end(), [&](const std::string& r) {
           const std::vector<std::string> words = split(r.substr(r.rfind('=') + 1), '/');
           return !words.empty() && words.front() == word_of(optimizer);
         });
}

void check_optimizers(const Settings& c, const RuleCheck& rules) {
  check_muon(c, rules);
  rules.collect("route", [&] {
    const std::vector<sherd::RoutingRule> routes = routing_rules(c.route);
    if (routes.empty() && !c.route.empty())
      throw sherd::InvalidArgument(
          fmt::format("'{}': no rule; write REGEX=OPTIMIZER, such as REGEX=muon", c.route));
    if (routes.size() > kMostRules)
      throw sherd::InvalidArgument(
          fmt::format("{} rules are more than {}; join names by '|'", routes.size(), kMostRules));
    for (const sherd::RoutingRule& rule : routes) (void)sherd::NamePattern(rule.pattern);
  });
  if (c.offload_window > 0 && c.offload_window < 1024)
    rules.add("offload_window", fmt::format("--offload-window {}: give at least 1K", c.offload_window));
  rules.collect("offload", [&] {
    const bool masters = offload_named(c.offload).master == sherd::Place::host;
    if (masters && c.precision == sherd::DType::f32)
      throw sherd::InvalidArgument(
          "'state,master': fp32 weights are their own masters; give --precision bf16, or state alone");
    if (masters && c.master == sherd::Master::bf16)
      throw sherd::InvalidArgument("'state,master': --master bf16 has no masters; give state alone");
  });
  check_normuon(c, rules);
  const bool muon = uses(c, OptimizerWord::muon) || uses(c, OptimizerWord::normuon),
             soap = uses(c, OptimizerWord::soap);
  const proto::Setting& plan = setting_of("explain_plan");
  if (!muon)
    refuse_idle(rules, "Muon", "muon", [&](const proto::Setting& s) {
      return s.subject() == proto::MUON && !(soap && &s == &plan);
    });
  if (!soap)
    refuse_idle(rules, "SOAP", "soap", [](const proto::Setting& s) { return s.subject() == proto::SOAP; });
}

sherd::LayoutChoice layout_of(const Settings& c) { return sherd::parse_layout(word_of(c.layout)); }

sherd::OptimizerOptions optimizer_options(const Settings& c) {
  sherd::OptimizerOptions o;
  o.adamw = {.beta1 = c.adam_beta1, .beta2 = c.adam_beta2, .eps = c.adam_eps};
  o.weight_decay = c.weight_decay;
  o.skip_non_finite = c.skip_non_finite;
  o.state_dtype = c.state_dtype;
  o.state_place = offload_named(c.offload).state;
  o.window_bytes = c.offload_window;
  o.ema_decay = c.ema;
  o.ema_dtype = c.ema_dtype;
  o.muon = muon_options(c);
  if (uses(c, OptimizerWord::normuon))
    o.further.push_back(sherd::NorMuon::factory({.muon = o.muon, .beta2 = c.adam_beta2}));
  if (uses(c, OptimizerWord::soap)) o.further.push_back(sherd::Soap::factory(soap_options(c)));
  return o;
}

sherd::RoutingOptions routing_options(const Settings& c) {
  sherd::RoutingOptions o;
  o.optimizer = algorithm_named(word_of(c.optimizer));
  o.rules = routing_rules(c.route);
  return o;
}

}  // namespace train_gpt
