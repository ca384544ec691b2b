#include <sherd/train/plan/hardware_profile.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_object.h>
#include <sherd/base/error.h>

namespace sherd {
namespace {

using nlohmann::ordered_json;

/// Figures of a GPU from data sheets and published measurements (docs/planning.md has the sources).
struct Gpu {
  const char* name;
  double memory_gb, memory_tb_per_s;
  double peak_16, peak_32, products_16, products_32;  // TFLOP/s: dense peaks; measured in large products
  double host_gb_per_s, network_gb_per_s;             // bus bandwidth of a rank, one way
  double offload_gb_per_s;                            // of the link to its host's pinned memory, one way
  int ranks_per_host;
  const char* other_forms = "";  // words in the driver's names of slower forms
};

constexpr Gpu kGpus[] = {{"a100", 80, 2.0, 312, 19.5, 271, 17.5, 240, 25, 25, 8},
                         {"h100", 80, 3.35, 989, 67, 794.5, 60, 361, 50, 50, 8, "PCIe NVL"},
                         {"h200", 141, 4.8, 989, 67, 794, 50.7, 361, 50, 50, 8, "NVL"},
                         {"b200", 180, 7.67, 2250, 75, 1745, 67, 682, 50, 50, 8},
                         {"gb200", 186, 8.0, 2500, 80, 1822, 72, 682, 50, 350, 72},
                         {"gb300", 288, 8.0, 2500, 80, 1822, 72, 682, 100, 350, 72}};

/// Parts of the rate of large products by FLOPs (Isaev et al., Calculon, 2023).
std::vector<SizedRate> product_rates(double tflops) {
  return {{1e8, .10e12 * tflops}, {1e9, .63e12 * tflops}, {16e9, .95e12 * tflops}, {128e9, 1e12 * tflops}};
}

/// Rate of a kind of operations at a width, as a part of a figure of the GPU's data sheet.
struct KindPart {
  WorkKind kind;
  double width, part;
};

// Parts that sherd's kernels reached on an H200: of 989 TFLOP/s and 4.8 TB/s, call 3 of docs/gpu-results.md, whose tables are named.
// Rows "derived" are a trace's total beside the work of a dry run. Other GPUs have the same parts of their own figures: predicted,
// never measured.
/// Of the dense peak of 16-bit products.
constexpr KindPart kFlopParts[] = {
    // Models: an odd number of logits ran at 90 to 125 TFLOP/s.
    {WorkKind::product, 1, .109},
    {WorkKind::product, 7, .109},
    // Models, derived: 53.6 TFLOP of gpt2-124m, whose width is 768, took 175 / 2 ms.
    {WorkKind::product, 8, .62},
    {WorkKind::product, 768, .62},
    // Models: plain products of the runs, some 700 TFLOP/s; Kernels: 684 to 726 at 8192.
    {WorkKind::product, 2048, .708},
    // Kernels: 2.75e11 FLOP forward and 2.5 times as many backward, 678 and 3132 us, 541 and 2031 us.
    {WorkKind::attention, 64, .41},
    {WorkKind::attention, 128, .514},
    {WorkKind::attention_backward, 64, .222},
    {WorkKind::attention_backward, 128, .342},
    // Newton-Schulz: Gram form with the kernel for 9.0; means of many squares and many wide matrices.
    {WorkKind::orthogonalize, 1024, .201},
    {WorkKind::orthogonalize, 2048, .323},
    {WorkKind::orthogonalize, 4096, .407},
    {WorkKind::orthogonalize, 8192, .482}};
/// Of the memory's bandwidth.
constexpr KindPart kByteParts[] = {
    // Kernels: parts of a copy's 4.27 TB/s. RMS norm at 4096; derived at 768 and 2048 from "norms, rope, SwiGLU".
    {WorkKind::compute, 768, .58}, {WorkKind::compute, 2048, .71}, {WorkKind::compute, 4096, .81},
    {WorkKind::copy, 1, .89},      {WorkKind::loss, 1, .738},      {WorkKind::optimizer, 1, .818},
    {WorkKind::squares, 1, .436}};

/// Least time of an operation, derived: the traces' classes leave 3.5 and 3.0 ms of a step with some 780 and 560 operations.
constexpr double kLaunch = 5e-6;

/// Sums of columns, derived from gpt2-124m's "biases and residual sums apart": times beside those of other passes.
const OperationFactors kOperations = {{"bias_backward", 2.1}};

/// Parts of an adapter's bandwidth by bytes: all-reduces of 4 hosts of 8 B200.
std::vector<SizedRate> network(double gb_per_s) {
  constexpr double kMiB = 1 << 20;
  return {{4 * kMiB, .047e9 * gb_per_s},
          {32 * kMiB, .228e9 * gb_per_s},
          {256 * kMiB, .573e9 * gb_per_s},
          {4096 * kMiB, .943e9 * gb_per_s}};
}

HardwareProfile profile_of(const Gpu& g) {
  HardwareProfile p = {.name = g.name,
                       .memory_bytes = static_cast<int64_t>(g.memory_gb * 1e9),
                       .ranks_per_host = g.ranks_per_host,
                       .peak_flops = g.peak_16 * 1e12,
                       .peak_flops_32 = g.peak_32 * 1e12,
                       .memory_bytes_per_s = .9e12 * g.memory_tb_per_s,
                       .offload_bytes_per_s = 1e9 * g.offload_gb_per_s,
                       .operation_s = kLaunch,
                       .products_16 = product_rates(g.products_16),
                       .products_32 = product_rates(g.products_32),
                       .host = {10e-6, {{1e5, .05e9 * g.host_gb_per_s}, {1e8, 1e9 * g.host_gb_per_s}}},
                       .network = {20e-6, network(g.network_gb_per_s)},
                       .factors_16 = kOperations,
                       .factors_32 = kOperations};
  for (const auto& [kind, width, part] : kByteParts)
    p.rates_16[kind].push_back({width, 1e12 * part * g.memory_tb_per_s});
  for (const auto& [kind, width, part] : kFlopParts)
    p.rates_16[kind].push_back({width, 1e12 * part * g.peak_16});
  p.rates_32 = p.rates_16;  // bounds above those of f32 products
  return p;
}

/// One core of an x86-64 server; --measure writes this machine's.
HardwareProfile cpu() {
  return {.name = "cpu",
          .memory_bytes = int64_t{16} << 30,
          .ranks_per_host = 64,
          .shares_cores = true,
          .memory_bytes_per_s = 10e9,
          .offload_bytes_per_s = 2e9,
          .operation_s = 2e-6,
          .products_16 = {{1e5, 5e9}, {1e7, 30e9}},
          .products_32 = {{1e5, 20e9}, {1e7, 60e9}},
          .host = {5e-6, {{1e4, 1e9}, {1e7, 5e9}}},
          .network = {50e-6, {{1e4, .1e9}, {1e7, 1e9}}}};
}

/// Words of letters and digits: of "NVIDIA A100-SXM4-80GB" {"NVIDIA", "A100", "SXM4", "80GB"}.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)))
      words.back() += c;
    else
      words.emplace_back();
  }
  std::erase(words, "");
  return words;
}

constexpr double kTiny = 1e-18, kHuge = 1e21;  // bounds of every rate, size and time

std::vector<SizedRate> read_rates(JsonObject& profile, const char* key) {
  std::vector<SizedRate> all;
  const nlohmann::json& rows = profile.raw(key);
  if (!rows.is_array() || rows.empty())
    profile.refuse(key, "rows [[size, rate], ...] are needed, at least one");
  for (size_t i = 0; rows.is_array() && i < rows.size(); ++i) {
    const auto good = [](const nlohmann::json& n) { return n.is_number() && n >= kTiny && n <= kHuge; };
    const bool pair = rows[i].is_array() && rows[i].size() == 2 && good(rows[i][0]) && good(rows[i][1]);
    if (!pair)
      profile.refuse_item(key, i, fmt::format("[size, rate] is needed, from {} to {}", kTiny, kHuge));
    else if (!all.empty() && !(rows[i][0] > all.back().size))
      profile.refuse_item(key, i, "sizes must ascend; sort the rows");
    else
      all.push_back({rows[i][0], rows[i][1]});
  }
  return all;
}

KindRates read_kinds(JsonObject kinds) {
  KindRates all;
  for (int i = 0; i <= static_cast<int>(WorkKind::squares); ++i) {
    const auto kind = static_cast<WorkKind>(i);
    if (const char* name = kWorkKinds.name(kind); kinds.has(name)) all[kind] = read_rates(kinds, name);
  }
  kinds.refuse_others();
  return all;
}

OperationFactors read_factors(JsonObject& profile, const char* key) {
  if (!profile.has(key)) profile.refuse(key, "{operation: factor} is needed");
  JsonObject factors = profile.object(key);
  OperationFactors all;
  for (const std::string& name : factors.keys())
    all[name] = factors.number(name.c_str(), std::nullopt, kTiny, kHuge);
  return all;
}

LinkProfile read_link(JsonObject link) {
  LinkProfile profile{link.number("latency_s", std::nullopt, 0, kHuge), read_rates(link, "bytes_per_s")};
  link.refuse_others();
  return profile;
}

ordered_json rows_of(const std::vector<SizedRate>& rates) {
  ordered_json rows = ordered_json::array();
  for (const SizedRate& r : rates) rows.push_back({r.size, r.rate});
  return rows;
}

ordered_json json_of(const KindRates& rates) {
  ordered_json object = ordered_json::object();
  for (const auto& [kind, rows] : rates) object[kWorkKinds.name(kind)] = rows_of(rows);
  return object;
}

ordered_json json_of(const LinkProfile& link) {
  return {{"latency_s", link.latency_s}, {"bytes_per_s", rows_of(link.bytes_per_s)}};
}

}  // namespace

double rate_at(const std::vector<SizedRate>& rates, double size) {
  const auto above = std::ranges::find_if(rates, [&](const SizedRate& r) { return r.size >= size; });
  if (above == rates.begin()) return above->rate;
  if (above == rates.end()) return rates.back().rate;
  const SizedRate &low = *(above - 1), &high = *above;
  const double part = std::log(size / low.size) / std::log(high.size / low.size);
  return low.rate * std::pow(high.rate / low.rate, part);
}

std::optional<double> HardwareProfile::dense_peak(DType dtype, bool tf32) const {
  const double peak = size_of(dtype) == 2 ? peak_flops : tf32 ? peak_flops / 2 : peak_flops_32;
  return peak > 0 ? std::optional(peak) : std::nullopt;
}

std::vector<std::string> hardware_names() {
  std::vector<std::string> names;
  for (const Gpu& g : kGpus) names.emplace_back(g.name);
  names.emplace_back("cpu");
  return names;
}

HardwareProfile hardware_profile(const std::string& name) {
  if (name == "cpu") return cpu();
  for (const Gpu& g : kGpus)
    if (name == g.name) return profile_of(g);
  if (!std::filesystem::exists(name))
    throw InvalidArgument(
        fmt::format("hardware '{}' is unknown and is not a file; use {}, or a file of --measure", name,
                    fmt::join(hardware_names(), ", ")));
  return parse_hardware(read_text(name, "name a file of --measure"), name);
}

std::optional<HardwareProfile> profile_of_device(std::string_view name) {
  const std::vector<std::string> words = words_of(name);
  const auto has = [&](const std::string& word) { return std::ranges::find(words, word) != words.end(); };
  for (const Gpu& g : kGpus) {
    std::string model = g.name;
    for (char& c : model) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    if (has(model) && !has("MIG") && std::ranges::none_of(words_of(g.other_forms), has)) return profile_of(g);
  }
  return std::nullopt;
}

HardwareProfile parse_hardware(std::string_view text, const std::string& source) {
  JsonObject o = JsonObject::parse(text, source, "correct it, or write the file by --measure");
  const auto positive = [&](const char* key) { return o.number(key, std::nullopt, kTiny, kHuge); };
  const auto positive_or_0 = [&](const char* key) { return o.number(key, std::nullopt, 0, kHuge); };
  HardwareProfile p{.name = o.text("name", std::nullopt)};
  constexpr double kMostBytes = 0x1p62, kMostRanks = 1 << 24;
  p.memory_bytes = static_cast<int64_t>(o.number("memory_bytes", std::nullopt, 1, kMostBytes));
  p.communicator_bytes = static_cast<int64_t>(o.number("communicator_bytes", 0, 0, kMostBytes));
  p.ranks_per_host = static_cast<int>(o.number("ranks_per_host", std::nullopt, 1, kMostRanks));
  p.shares_cores = o.flag("shares_cores", false);
  p.peak_flops = positive_or_0("peak_flops");
  if (o.has("peak_flops_32"))
    p.peak_flops_32 = positive_or_0("peak_flops_32");
  else if (p.name == kMeasuredHardware)  // earlier files have the rate of measured products there
    p.peak_flops = 0;
  p.memory_bytes_per_s = positive("memory_bytes_per_s");
  p.fresh_bytes_per_s = o.number("fresh_bytes_per_s", 0, 0, kHuge);
  // Earlier files lack it: a disk's, or a slow link's.
  p.offload_bytes_per_s = o.number("offload_bytes_per_s", 1e9, kTiny, kHuge);
  p.operation_s = positive_or_0("operation_s");
  p.products_16 = read_rates(o, "products_16");
  p.products_32 = read_rates(o, "products_32");
  p.host = read_link(o.object("host"));
  p.network = read_link(o.object("network"));
  p.rates_16 = read_kinds(o.object("rates_16"));  // earlier files lack them
  p.rates_32 = read_kinds(o.object("rates_32"));
  p.factors_16 = read_factors(o, "factors_16");
  p.factors_32 = read_factors(o, "factors_32");
  p.compute_efficiency = positive("compute_efficiency");
  p.communication_efficiency = positive("communication_efficiency");
  o.refuse_others();
  o.require_none();
  return p;
}

std::string to_text(const HardwareProfile& p) {
  const ordered_json object = {{"name", p.name},
                               {"memory_bytes", p.memory_bytes},
                               {"communicator_bytes", p.communicator_bytes},
                               {"ranks_per_host", p.ranks_per_host},
                               {"shares_cores", p.shares_cores},
                               {"peak_flops", p.peak_flops},
                               {"peak_flops_32", p.peak_flops_32},
                               {"memory_bytes_per_s", p.memory_bytes_per_s},
                               {"fresh_bytes_per_s", p.fresh_bytes_per_s},
                               {"offload_bytes_per_s", p.offload_bytes_per_s},
                               {"operation_s", p.operation_s},
                               {"products_16", rows_of(p.products_16)},
                               {"products_32", rows_of(p.products_32)},
                               {"host", json_of(p.host)},
                               {"network", json_of(p.network)},
                               {"rates_16", json_of(p.rates_16)},
                               {"rates_32", json_of(p.rates_32)},
                               {"factors_16", p.factors_16},
                               {"factors_32", p.factors_32},
                               {"compute_efficiency", p.compute_efficiency},
                               {"communication_efficiency", p.communication_efficiency}};
  return object.dump(2) + "\n";
}

}  // namespace sherd
