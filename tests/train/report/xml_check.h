// Check for well-formed XML, as far as pictures need it: elements, attributes, text, entities.
#pragma once

#include <cctype>
#include <set>
#include <string>
#include <vector>

namespace sherd::test {

/// Returns the first problem; empty without one.
inline std::string xml_problem(const std::string& xml) {
  std::vector<std::string> open;
  size_t at = 0, elements = 0;
  const auto where = [&](const std::string& what) { return what + " at byte " + std::to_string(at); };
  const auto name = [&] {
    const size_t begin = at;
    while (at < xml.size() &&
           (std::isalnum(static_cast<unsigned char>(xml[at])) || xml[at] == '-' || xml[at] == ':'))
      ++at;
    return xml.substr(begin, at - begin);
  };
  const auto text_ends = [&](char end) {  // skips text; false at a lone & or a bad entity
    for (; at < xml.size() && xml[at] != end; ++at) {
      if (xml[at] != '&') continue;
      bool known = false;
      for (const char* entity : {"&amp;", "&lt;", "&gt;", "&quot;"})
        known |= xml.compare(at, std::string(entity).size(), entity) == 0;
      if (!known) return false;
    }
    return true;
  };
  while (at < xml.size()) {
    if (xml[at] != '<') {
      if (open.empty() && !std::isspace(static_cast<unsigned char>(xml[at])))
        return where("text outside the root");
      if (!text_ends('<')) return where("an & that begins no entity");
      continue;
    }
    ++at;
    if (at < xml.size() && xml[at] == '/') {
      ++at;
      const std::string closed = name();
      if (open.empty() || open.back() != closed) return where("</" + closed + "> closes nothing");
      if (at >= xml.size() || xml[at++] != '>') return where("an end tag does not end");
      open.pop_back();
      continue;
    }
    const std::string element = name();
    if (element.empty()) return where("a < that begins no tag");
    if (open.empty() && elements > 0) return where("a second root");
    ++elements;
    std::set<std::string> attributes;
    for (;;) {
      while (at < xml.size() && std::isspace(static_cast<unsigned char>(xml[at]))) ++at;
      if (at >= xml.size()) return where("a tag does not end");
      if (xml[at] == '>' || xml.compare(at, 2, "/>") == 0) break;
      const std::string attribute = name();
      if (attribute.empty() || !attributes.insert(attribute).second) return where("a bad attribute");
      if (xml.compare(at, 2, "=\"") != 0) return where("an attribute without quoted value");
      at += 2;
      const size_t begin = at;
      if (!text_ends('"') || at >= xml.size()) return where("a value does not end, or holds a bad entity");
      if (xml.substr(begin, at - begin).find('<') != std::string::npos) return where("a < in a value");
      ++at;
    }
    if (xml[at] == '/') {
      at += 2;
    } else {
      ++at;
      open.push_back(element);
    }
  }
  if (!open.empty()) return where("<" + open.back() + "> is not closed");
  return elements == 0 ? "no element" : "";
}

}  // namespace sherd::test
