#include "measure/documents.h"

#include <boost/json/parse.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

namespace protean {
namespace {

namespace json = boost::json;

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code unknown;
  if (!file || std::filesystem::is_directory(path, unknown)) {
    return make_error(ErrorCode::kNotFound, "cannot read {}: is it a file you may read?", path);
  }
  return std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t at;
       !separator.empty() && (at = text.find(separator, begin)) != std::string::npos;
       begin = at + separator.size()) {
    parts.push_back(text.substr(begin, at - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

bool is_jsonl(const std::string& path) {
  return path.ends_with(".jsonl");
}

// Returns a member that must be a string; empty if it is missing and not required.
Result<std::string> member(const json::object& object, const char* name, bool required) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr && !required) {
    return std::string();
  }
  if (value == nullptr || !value->is_string()) {
    return make_error(ErrorCode::kInvalidArgument, "there is no text in \"{}\"", name);
  }
  return std::string(value->get_string());
}

// Calls take(object) for each line that is not empty.
template <class Take>
Status each_line(const std::string& path, const std::string& text, const Take& take) {
  int number = 0;
  for (const std::string& line : split(text, "\n")) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    boost::system::error_code bad;
    const json::value value = json::parse(line, bad);
    Status taken = bad || !value.is_object()
                       ? Status(make_error(ErrorCode::kInvalidArgument, "this is no JSON object"))
                       : take(value.get_object());
    if (!taken.ok()) {
      return make_error(ErrorCode::kInvalidArgument, "{}, line {}: {}", path, number,
                        taken.error().message);
    }
  }
  return {};
}

Document make_document(std::string text, const Tokenizer& tokenizer) {
  Document document;
  document.tokens = tokenizer.encode(text, {.add_special = true, .parse_special = false});
  const bool has_bos = !document.tokens.empty() && document.tokens.front() == tokenizer.bos();
  if (!has_bos && tokenizer.bos() >= 0) {
    document.tokens.insert(document.tokens.begin(), tokenizer.bos());
  }
  document.scored_bytes = std::ssize(text);
  if (tokenizer.bos() < 0 && !document.tokens.empty()) {
    document.scored_bytes -= std::ssize(tokenizer.bytes(document.tokens.front()));
  }
  document.text = std::move(text);
  return document;
}

}  // namespace

Result<std::vector<Document>> read_documents(const std::string& path, const std::string& separator,
                                             const Tokenizer& tokenizer) {
  const auto file = read_file(path);
  if (!file.ok()) {
    return file.error();
  }
  std::vector<std::string> texts;
  if (is_jsonl(path)) {
    Status read = each_line(path, *file, [&](const json::object& line) -> Status {
      auto text = member(line, "text", true);
      if (!text.ok()) {
        return text.error();
      }
      texts.push_back(*std::move(text));
      return {};
    });
    if (!read.ok()) {
      return read.error();
    }
  } else {
    texts = split(*file, separator);
  }
  std::vector<Document> documents;
  for (std::string& text : texts) {
    Document document = make_document(std::move(text), tokenizer);
    if (document.tokens.size() > 1) {
      documents.push_back(std::move(document));
    }
  }
  if (documents.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{} holds no text to score", path);
  }
  return documents;
}

Result<std::vector<Continuation>> read_prompts(const std::string& path) {
  const auto file = read_file(path);
  if (!file.ok()) {
    return file.error();
  }
  std::vector<Continuation> prompts;
  if (!is_jsonl(path)) {
    for (std::string& line : split(*file, "\n")) {
      if (!line.empty()) {
        prompts.push_back({std::move(line), {}});
      }
    }
  } else {
    Status read = each_line(path, *file, [&](const json::object& line) -> Status {
      auto prompt = member(line, "prompt", true);
      auto reference = member(line, "reference", false);
      if (!prompt.ok() || !reference.ok()) {
        return prompt.ok() ? reference.error() : prompt.error();
      }
      prompts.push_back({*std::move(prompt), *std::move(reference)});
      return {};
    });
    if (!read.ok()) {
      return read.error();
    }
  }
  if (prompts.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{} holds no prompt", path);
  }
  return prompts;
}

}  // namespace protean
