#include "hub/model_name.h"

#include <algorithm>
#include <cstddef>

namespace protean::hub {
namespace {

constexpr std::size_t kLongestPart = 96;
constexpr std::size_t kLongestWord = 255;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-';
}

// Says what is wrong with the name of an organisation or of a model; empty if nothing is.
std::string_view fault_of_part(std::string_view part) {
  if (part.empty() || part.size() > kLongestPart) {
    return "each side of the slash has 1 to 96 characters";
  }
  if (!std::all_of(part.begin(), part.end(), is_word)) {
    return "a name has letters, digits, '-', '_' and '.'";
  }
  if (part.front() == '-' || part.front() == '.' || part.back() == '-' || part.back() == '.' ||
      part.find("--") != part.npos || part.find("..") != part.npos || part.ends_with(".git")) {
    return "a name does not begin or end with '-' or '.', repeat one, or end in .git";
  }
  return {};
}

// True for a branch, tag, quantisation or file name that can be part of a path and of a URL.
bool is_plain_path(std::string_view text) {
  if (text.empty() || text.size() > kLongestWord) {
    return false;
  }
  while (true) {
    const std::size_t end = std::min(text.find('/'), text.size());
    const std::string_view word = text.substr(0, end);
    const bool plain = std::all_of(word.begin(), word.end(),
                                   [](char c) { return is_word(c) || c == '+' || c == '='; });
    if (word.empty() || word.front() == '.' || word.ends_with(".lock") || !plain) {
      return false;
    }
    if (end == text.size()) {
      return true;
    }
    text.remove_prefix(end + 1);
  }
}

Error wrong_name(std::string_view text, std::string_view why) {
  return make_error(ErrorCode::kInvalidArgument,
                    "'{}' is not the name of a model: {}; write ORG/NAME, ORG/NAME:Q4_K_M or "
                    "ORG/NAME@REVISION",
                    text, why);
}

}  // namespace

Result<ModelName> parse_model_name(std::string_view text) {
  ModelName name;
  std::string_view rest = text;
  if (const std::size_t at = rest.find('@'); at != rest.npos) {
    name.revision = rest.substr(at + 1);
    rest = rest.substr(0, at);
    if (!is_plain_path(name.revision)) {
      return wrong_name(text, "after '@' comes a branch, a tag or a commit");
    }
  }
  if (const std::size_t colon = rest.find(':'); colon != rest.npos) {
    name.file = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
    if (!is_plain_path(name.file)) {
      return wrong_name(text, "after ':' comes the quantisation or the file name of a GGUF");
    }
  }
  const std::size_t slash = rest.find('/');
  if (slash == rest.npos || rest.find('/', slash + 1) != rest.npos) {
    return wrong_name(text, "it needs one slash between organisation and model");
  }
  for (const std::string_view part : {rest.substr(0, slash), rest.substr(slash + 1)}) {
    if (const std::string_view fault = fault_of_part(part); !fault.empty()) {
      return wrong_name(text, fault);
    }
  }
  name.repo = rest;
  return name;
}

std::string to_string(const ModelName& name) {
  return name.repo + (name.file.empty() ? "" : ":" + name.file) +
         (name.revision.empty() ? "" : "@" + name.revision);
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace protean::hub
