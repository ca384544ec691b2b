#include <sherd/train/data/token_list.h>

#include <algorithm>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/train/data/mixture.h>

namespace sherd {
namespace {

constexpr size_t kPlaces = 9;

/// In billionths; -1 when `text` is not a decimal. @throws InvalidArgument for one of too many digits.
int64_t decimal(std::string_view text, std::string_view list, std::string_view flag) {
  const size_t point = text.find('.');
  const std::string_view whole = text.substr(0, point),
                         places = point == std::string_view::npos ? "" : text.substr(point + 1);
  std::string digits(whole);
  digits += places;
  if (digits.empty() || digits.find_first_not_of("0123456789") != digits.npos) return -1;
  if (whole.size() > kPlaces || places.size() > kPlaces)
    throw InvalidArgument(fmt::format(
        "{} '{}': the weight {} has more than {} digits before or after the point; use fewer, or write '\\:' "
        "for a colon of the name",
        flag, list, text, kPlaces));
  return std::stoll(digits.append(kPlaces - places.size(), '0'));
}

/// A name with '\,' for each comma and '\:' for a colon.
std::string unescaped(std::string_view name) {
  std::string path;
  for (size_t i = 0; i < name.size(); ++i)
    if (name[i] != '\\' || i + 1 == name.size() || (name[i + 1] != ',' && name[i + 1] != ':'))
      path += name[i];
  return path;
}

/// The end of the entry that begins at `begin`.
size_t end_of_entry(std::string_view list, size_t begin) {
  size_t end = list.find(',', begin);
  while (end != list.npos && end > begin && list[end - 1] == '\\') end = list.find(',', end + 1);
  return std::min(end, list.size());
}

/// Returns the divisor that turns weights into shares; 0 without weights.
int64_t common_divisor(const std::vector<TokenPath>& paths) {
  int64_t divisor = 0;
  for (const TokenPath& p : paths) divisor = std::gcd(divisor, p.weight);
  return divisor;
}

void require_shares(const std::vector<TokenPath>& paths, std::string_view list, std::string_view flag) {
  const int64_t divisor = common_divisor(paths);
  int64_t sum = 0;
  for (const TokenPath& p : paths) {
    if (p.weight / divisor > Mixture::kLongestPeriod - sum)
      throw InvalidArgument(fmt::format(
          "{} '{}': as whole numbers the weights add up to more than {}; use fewer decimal places", flag,
          list, Mixture::kLongestPeriod));
    sum += p.weight / divisor;
  }
}

void require_no_weights(const std::vector<TokenPath>& paths, std::string_view flag) {
  for (const TokenPath& p : paths)
    if (p.weight != 0)
      throw InvalidArgument(
          fmt::format("{}: '{}' has a weight, but each of these files' windows is used once; leave "
                      "the weights out",
                      flag, p.path.string()));
}

std::string joined(const std::vector<TokenPath>& paths) {
  std::string all;
  for (const TokenPath& p : paths) all += (all.empty() ? "" : ",") + p.path.string();
  return all;
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

std::shared_ptr<const TokenStream> one_stream(const std::vector<TokenPath>& paths, TokenFormat format) {
  std::vector<TokenFile> files;
  for (const TokenPath& p : paths) files.push_back(open_token_file(p.path, format));
  return std::make_shared<const TokenStream>(joined(paths), std::move(files));
}

}  // namespace

std::vector<TokenPath> parse_token_list(std::string_view list, std::string_view flag) {
  std::vector<TokenPath> paths;
  size_t weights = 0;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = end_of_entry(list, begin);
    const std::string_view entry = list.substr(begin, end - begin);
    begin = end + 1;
    const size_t colon = entry.rfind(':');
    const bool weighted = colon != entry.npos && (colon == 0 || entry[colon - 1] != '\\');
    const int64_t weight = weighted ? decimal(entry.substr(colon + 1), list, flag) : -1;
    const std::string path = unescaped(weight < 0 ? entry : entry.substr(0, colon));
    if (path.empty())
      throw InvalidArgument(fmt::format(
          "{} '{}': an entry names no file; it is FILE[:WEIGHT][,FILE[:WEIGHT]...] (a name's comma: "
          "'\\,')",
          flag, list));
    if (weight == 0)
      throw InvalidArgument(
          fmt::format("{} '{}': the weight of '{}' is 0; leave the file out", flag, list, path));
    weights += weight > 0;
    paths.push_back({path, std::max<int64_t>(weight, 0)});
  }
  if (weights != 0 && weights != paths.size())
    throw InvalidArgument(
        fmt::format("{} '{}': {} of {} files have weights; give one to each of them, or to none for one "
                    "stream in this order",
                    flag, list, weights, paths.size()));
  if (weights != 0) require_shares(paths, list, flag);
  return paths;
}

std::vector<EvaluationPath> parse_evaluation_list(std::string_view list, std::string_view flag) {
  std::vector<EvaluationPath> sets;
  for (const TokenPath& entry : parse_token_list(list, flag)) {
    const std::string text = entry.path.string();
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    const bool named = equals != text.npos && !name.empty() && equals + 1 < text.size() &&
                       std::all_of(name.begin(), name.end(), is_name_character);
    if (!named)
      throw InvalidArgument(
          fmt::format("{} '{}': '{}' is not NAME=FILE[:WEIGHT]; give each file a name of letters, digits, "
                      "'.', '_' or '-'",
                      flag, list, text));
    if (std::any_of(sets.begin(), sets.end(), [&](const EvaluationPath& s) { return s.name == name; }))
      throw InvalidArgument(
          fmt::format("{} '{}': two sets have the name '{}'; rename one", flag, list, name));
    sets.push_back({name, {text.substr(equals + 1), std::max<int64_t>(entry.weight, 1)}});
  }
  return sets;
}

std::vector<EvaluationTokens> open_evaluation_sets(const std::vector<EvaluationPath>& sets,
                                                   TokenFormat format) {
  std::vector<EvaluationTokens> opened;
  for (const EvaluationPath& s : sets)
    opened.push_back({s.name, one_stream({s.tokens}, format), s.tokens.weight});
  return opened;
}

std::vector<TokenPath> parse_unweighted_token_list(std::string_view list, std::string_view flag) {
  std::vector<TokenPath> paths = parse_token_list(list, flag);
  require_no_weights(paths, flag);
  return paths;
}

std::vector<SharedTokens> open_token_streams(const std::vector<TokenPath>& paths, TokenFormat format) {
  if (paths.empty()) throw InvalidArgument("no token files");
  if (paths.front().weight == 0) return {{one_stream(paths, format), 1}};
  const int64_t divisor = common_divisor(paths);
  std::vector<SharedTokens> streams;
  for (const TokenPath& p : paths) streams.push_back({one_stream({p}, format), p.weight / divisor});
  return streams;
}

std::shared_ptr<const TokenStream> open_one_token_stream(const std::vector<TokenPath>& paths,
                                                         TokenFormat format, std::string_view flag) {
  if (paths.empty()) throw InvalidArgument(fmt::format("{}: no token files", flag));
  require_no_weights(paths, flag);
  return one_stream(paths, format);
}

}  // namespace sherd
