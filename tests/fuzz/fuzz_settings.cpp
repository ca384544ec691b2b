// Any bytes as the settings in a checkpoint's manifest are taken or refused, with lines that can be printed.
#include <sherd/train/settings/config_differences.h>
#include <sherd/train/settings/saved_settings.h>

#include "messages.h"

using namespace sherd;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text = "a", word = "one";
  int64_t steps = 4;
  uint64_t seed = 1;
  double lr = 0.5;
  std::optional<double> least;
  bool quiet = false;
  const std::vector<FieldGroup> groups = {{"all",
                                           {{"text", &text, "TEXT", ""},
                                            {"word", &word, "one|two", ""},
                                            {"steps", &steps, "N", "", 0, 1e9},
                                            {"seed", &seed, "N", ""},
                                            {"lr", &lr, "X", "", 0, 1},
                                            {"least", &least, "X", "", 0, 1},
                                            {"quiet", &quiet, "", ""}}}};
  std::vector<std::string_view> names;
  for (const Field& field : groups[0].fields) names.push_back(field.name);
  SavedTraining saved{"step_00000001", {}};
  saved.training.info["config"].assign(reinterpret_cast<const char*>(data), size);

  for (const std::string& line : config_differences(saved.training, config_text(groups), names))
    require_printable(line);
  std::vector<std::string> problems;
  const auto set = take_saved_settings(saved, groups, names, problems);
  for (const std::string& line : problems) require_printable(line);
  if (set.size() + problems.size() > names.size()) throw std::logic_error("a setting was taken and refused");
  for (const Field& field : groups[0].fields)
    if (!check_value(field).empty()) throw std::logic_error("a setting has a value that it may not have");
  return 0;
}
