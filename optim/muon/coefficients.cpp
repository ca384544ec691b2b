#include <sherd/optim/muon/coefficients.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include <sherd/base/error.h>

namespace sherd {
namespace {

enum class MoreSteps { cycle, repeat_last };

struct Row {
  double a, b, c;
};

struct Set {
  std::string_view name;
  MoreSteps more;
  /// Rows are divided by (s, s^3, s^5): singular values up to s times the norm stay inside.
  double safety;
  std::vector<Row> rows;
};

constexpr Row kJordan{3.4445, -4.7750, 2.0315};
constexpr Row kConverging{2, -1.5, 0.5};

const std::vector<Set>& sets() {
  static const std::vector<Set> all = {
      {"jordan", MoreSteps::cycle, 1, std::vector<Row>(5, kJordan)},
      {"quintic",
       MoreSteps::cycle,
       1,
       {{4.0848, -6.8946, 2.9270},
        {3.9505, -6.3029, 2.6377},
        {3.7418, -5.5913, 2.3037},
        {2.8769, -3.1427, 1.2046},
        {2.8366, -3.0525, 1.2012}}},
      {"polar_express",
       MoreSteps::repeat_last,
       1.05,
       {{8.28721201814563, -23.595886519098837, 17.300387312530933},
        {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
        {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
        {3.3184196573706015, -2.488488024314874, 0.51004894012372},
        {2.300652019954817, -1.6689039845747493, 0.4188073119525673}}},
      {"cans",
       MoreSteps::repeat_last,
       1,
       {{8.4703, -25.1081, 18.6293},
        {4.1828, -3.1087, 0.5806},
        {3.9619, -2.9541, 0.5630},
        {3.2866, -2.4647, 0.5074},
        {2.2737, -1.6447, 0.4162}}},
      {"aol",
       MoreSteps::cycle,
       1,
       {{4.0098, -7.0585, 2.4635},
        {3.4585, -5.5479, 2.5959},
        {2.7573, -3.2939, 1.4254},
        {2.7215, -3.0494, 1.3169}}},
      {"deepseekv4",
       MoreSteps::repeat_last,
       1,
       {kJordan, kJordan, kJordan, kJordan, kJordan, kJordan, kJordan, kJordan, kConverging, kConverging}}};
  return all;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Parses a finite number, with spaces around it. from_chars() ignores the locale: a decimal comma never
// parses.
double number(std::string_view text, std::string_view whole) {
  const size_t begin = std::min(text.find_first_not_of(' '), text.size());
  text.remove_prefix(begin);
  text = text.substr(0, text.find_last_not_of(' ') + 1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(static_cast<float>(value)))
    throw InvalidArgument(fmt::format("coefficients '{}': '{}' is not a finite number", whole, text));
  return value;
}

Set parsed(std::string_view text) {
  Set set{"custom", MoreSteps::repeat_last, 1, {}};
  for (std::string_view row : split(text, ';')) {
    const auto parts = split(row, ',');
    if (parts.size() != 3)
      throw InvalidArgument(fmt::format("coefficients '{}': '{}' has {} numbers; write a,b,c;a,b,c;...", text,
                                        row, parts.size()));
    set.rows.push_back({number(parts[0], text), number(parts[1], text), number(parts[2], text)});
  }
  return set;
}

Set named(std::string_view name) {
  for (const Set& s : sets())
    if (s.name == name) return s;
  throw InvalidArgument(fmt::format("unknown coefficient set '{}'; use {} or rows a,b,c;a,b,c;...", name,
                                    fmt::join(coefficient_set_names(), ", ")));
}

}  // namespace

std::vector<Coefficients> coefficient_steps(std::string_view name, int steps) {
  if (steps < 0)
    throw InvalidArgument(
        fmt::format("coefficient set '{}': {} steps; use 0 for its own number", name, steps));
  const Set set = name.find(',') == std::string_view::npos ? named(name) : parsed(name);
  const size_t rows = set.rows.size(), wanted = steps == 0 ? rows : static_cast<size_t>(steps);
  std::vector<Coefficients> result;
  for (size_t i = 0; i < wanted; ++i) {
    const Row& r = set.rows[set.more == MoreSteps::cycle ? i % rows : std::min(i, rows - 1)];
    const double s = set.safety;
    // p(x / s) with p(x) = a x + b x^3 + c x^5.
    result.push_back({static_cast<float>(r.a / s), static_cast<float>(r.b / std::pow(s, 3)),
                      static_cast<float>(r.c / std::pow(s, 5))});
  }
  return result;
}

std::vector<int> safe_restarts(const std::vector<Coefficients>& steps, DType working) {
  const double limit = working == DType::f32 ? 1e6 : 150;
  std::vector<int> restarts;
  double growth = 1;
  for (size_t i = 1; i < steps.size(); ++i) {
    // a is the factor of small singular values: errors in R = X X^T grow by its square.
    const double a = std::max(1.0, double{steps[i - 1].a});
    growth *= a * a;
    if (growth <= limit) continue;
    restarts.push_back(static_cast<int>(i));
    growth = 1;
  }
  return restarts;
}

std::vector<std::string> coefficient_set_names() {
  std::vector<std::string> names;
  for (const Set& s : sets()) names.emplace_back(s.name);
  return names;
}

}  // namespace sherd
