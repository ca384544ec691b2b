#include "train_gpt/settings/settings.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/printable.h>

namespace train_gpt {
namespace {

const char* title_of(proto::Subject subject) {
  return proto::Subject_descriptor()
      ->FindValueByNumber(subject)
      ->options()
      .GetExtension(proto::title)
      .c_str();
}

sherd::Field field_of(const google::protobuf::FieldDescriptor& field, sherd::Field::Target target) {
  const proto::Setting& s = field.options().GetExtension(proto::setting);
  return {.name = field.name().c_str(),
          .target = target,
          .value = s.has_words() ? s.words().c_str() : s.unit().c_str(),
          .help = s.help().c_str(),
          .low = s.low(),
          .high = s.high(),
          .aliases = s.aliases().c_str(),
          .first_day = s.first_day(),
          .above_low = s.above_low(),
          .below_high = s.below_high()};
}

}  // namespace

std::vector<sherd::FieldGroup> fields_of(Settings& settings) {
  const auto& message = *proto::TrainConfig::descriptor();
  const std::vector<sherd::Field::Target> places = places_of(settings);
  std::vector<sherd::FieldGroup> groups;
  for (int i = 0; i < message.field_count(); ++i) {
    const auto& field = *message.field(i);
    const char* const title = title_of(field.options().GetExtension(proto::setting).subject());
    if (groups.empty() || groups.back().title != title) groups.push_back({title, {}});
    groups.back().fields.push_back(field_of(field, places[static_cast<size_t>(i)]));
  }
  return groups;
}

const proto::Setting& setting_of(std::string_view name) {
  return proto::TrainConfig::descriptor()
      ->FindFieldByName(std::string(name))
      ->options()
      .GetExtension(proto::setting);
}

std::string flag_with_value(const sherd::Field& field, const std::string& value) {
  const bool is_switch = field.value[0] == '\0';
  return sherd::flag_of(field) + (is_switch ? "" : " " + sherd::printable(value));
}

std::vector<std::string> changed_flags(Settings settings, Settings standard,
                                       const std::function<bool(std::string_view)>& wanted) {
  const std::vector<sherd::FieldGroup> fields = fields_of(settings), defaults = fields_of(standard);
  std::vector<std::string> flags;
  for (size_t g = 0; g < fields.size(); ++g) {
    for (size_t i = 0; i < fields[g].fields.size(); ++i) {
      const sherd::Field& field = fields[g].fields[i];
      const std::string value = sherd::show_value(field);
      if (!wanted(field.name) || value == sherd::show_value(defaults[g].fields[i])) continue;
      flags.push_back(flag_with_value(field, value));
    }
  }
  return flags;
}

std::string given_flags(const sherd::GivenFlags& given,
                        const std::function<bool(const proto::Setting&)>& wanted) {
  std::vector<std::string> list;
  for (const auto& [field, text] : given.flags)
    if (wanted(setting_of(field->name))) list.push_back(sherd::flag_of(*field));
  return fmt::format("{}", fmt::join(list, ", "));
}

bool describes_training(const proto::Setting& setting) {
  switch (setting.subject()) {
    case proto::DATA:
    case proto::RANKS:
    case proto::MODEL:
    case proto::TRAINING:
    case proto::MUON:
    case proto::SOAP:
      return true;
    default:
      return false;
  }
}

}  // namespace train_gpt
