#include "tokenizer/companions.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/small_file.h"
#include "tokenizer/json_fields.h"

namespace protean {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

constexpr std::string_view kEndNames[] = {"</s>", "<|endoftext|>", "<|end_of_text|>"};

// Returns a token's text, which is a string or the "content" of an object.
std::optional<std::string> token_name(const Fields& fields, std::string_view key) {
  const json::value* value = fields.find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (value->is_object()) {
    const Fields token = Fields::of(*value, std::string(key), fields.complaint());
    return std::string(token.required_text("content"));
  }
  return std::string(fields.text(key, ""));
}

void read_names(const Fields& fields, Companions& out) {
  if (!out.bos) {
    out.bos = token_name(fields, "bos_token");
  }
  if (!out.eos) {
    out.eos = token_name(fields, "eos_token");
  }
}

bool good_id(std::int64_t id) {
  return id >= 0 && id < kLargestVocabulary;
}

void read_added_decoder(const Fields& config, Companions& out) {
  const json::value* value = config.find("added_tokens_decoder");
  if (value == nullptr) {
    return;
  }
  const Fields table = Fields::of(*value, "added_tokens_decoder", config.complaint());
  for (const auto& member : table.object()) {
    const std::string_view key(member.key().data(), member.key().size());
    std::int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const Fields token =
        Fields::of(member.value(), "added token " + std::string(key), config.complaint());
    const std::string_view content = token.required_text("content");
    if (error != std::errc() || end != key.data() + key.size() || !good_id(id) || content.empty()) {
      config.complaint().add(ErrorCode::kCorrupt, "added token '{}' has no valid id or content",
                             key);
      return;
    }
    out.added.push_back({.content = std::string(content),
                         .id = static_cast<TokenId>(id),
                         .special = token.boolean("special", false)});
  }
}

void read_config(const Fields& config, Companions& out) {
  read_names(config, out);
  if (config.find("add_bos_token") != nullptr) {
    out.add_bos = config.boolean("add_bos_token", false);
  }
  if (config.find("add_eos_token") != nullptr) {
    out.add_eos = config.boolean("add_eos_token", false);
  }
  out.tokenizer_class = config.text("tokenizer_class", "");
  if (out.tokenizer_class.ends_with("Fast")) {
    out.tokenizer_class.resize(out.tokenizer_class.size() - 4);
  }
  read_added_decoder(config, out);
}

void read_added_tokens(const Fields& table, Companions& out) {
  for (const auto& member : table.object()) {
    const std::string content(member.key().data(), member.key().size());
    const std::int64_t* id = member.value().if_int64();
    if (id == nullptr || !good_id(*id) || content.empty()) {
      table.complaint().add(ErrorCode::kCorrupt, "added token '{}' has no valid id", content);
      return;
    }
    const bool known = std::any_of(out.added.begin(), out.added.end(), [&](const AddedToken& a) {
      return a.id == *id || a.content == content;
    });
    if (!known) {
      out.added.push_back({.content = content, .id = static_cast<TokenId>(*id), .special = true});
    }
  }
}

Status read_one(const fs::path& path, void (*read)(const Fields&, Companions&), Companions& out) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    return {};
  }
  const Result<std::string> text = read_small_file(path);
  if (!text) {
    return text.error();
  }
  Complaint complaint(path.string());
  const Result<json::value> root = parse_json_object(*text);
  if (!root) {
    complaint.add(root.error());
  } else {
    read(Fields::of(*root, "the file", complaint), out);
  }
  return complaint.any() ? Status(complaint.error()) : Status();
}

TokenId find_text(const std::vector<std::string>& tokens, std::string_view text) {
  const auto found = std::find(tokens.begin(), tokens.end(), text);
  return found == tokens.end() ? -1 : static_cast<TokenId>(found - tokens.begin());
}

Status add_token(const AddedToken& token, Vocabulary& vocabulary) {
  const auto size = static_cast<TokenId>(vocabulary.tokens.size());
  if (token.id >= size) {
    vocabulary.tokens.resize(token.id + 1);
    vocabulary.types.resize(token.id + 1, Vocabulary::Type::kUnused);
    vocabulary.scores.resize(token.id + 1);
    vocabulary.tokens[token.id] = token.content;
  } else if (vocabulary.tokens[token.id].empty()) {
    vocabulary.tokens[token.id] = token.content;
  } else if (vocabulary.tokens[token.id] != token.content) {
    return make_error(ErrorCode::kCorrupt, "added token '{}' has id {}, which is '{}'",
                      token.content, token.id, vocabulary.tokens[token.id]);
  }
  Vocabulary::Type& type = vocabulary.types[token.id];
  if (!token.special) {
    type = Vocabulary::Type::kUserDefined;
  } else if (type != Vocabulary::Type::kUnknown) {
    type = Vocabulary::Type::kControl;
  }
  return {};
}

}  // namespace

Result<Companions> read_companions(const fs::path& directory) {
  Companions out;
  const std::pair<const char*, void (*)(const Fields&, Companions&)> files[] = {
      {"tokenizer_config.json", read_config},
      {"special_tokens_map.json", read_names},
      {"added_tokens.json", read_added_tokens}};
  for (const auto& [name, read] : files) {
    if (const Status status = read_one(directory / name, read, out); !status) {
      return status.error();
    }
  }
  std::sort(out.added.begin(), out.added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return out;
}

Status apply_companions(const Companions& companions, Vocabulary& vocabulary) {
  for (const AddedToken& token : companions.added) {
    if (Status added = add_token(token, vocabulary); !added) {
      return added;
    }
  }
  if (companions.bos) {
    vocabulary.bos = find_text(vocabulary.tokens, *companions.bos);
  }
  if (companions.eos) {
    vocabulary.eos = find_text(vocabulary.tokens, *companions.eos);
  }
  for (const std::string_view name : kEndNames) {
    if (vocabulary.eos < 0) {
      vocabulary.eos = find_text(vocabulary.tokens, name);
    }
  }
  for (const TokenId id : {vocabulary.bos, vocabulary.eos}) {
    if (id >= 0 && id < static_cast<TokenId>(vocabulary.types.size()) &&
        vocabulary.types[id] == Vocabulary::Type::kNormal) {
      vocabulary.types[id] = Vocabulary::Type::kControl;
    }
  }
  vocabulary.add_bos = companions.add_bos.value_or(vocabulary.add_bos) && vocabulary.bos >= 0;
  vocabulary.add_eos = companions.add_eos.value_or(vocabulary.add_eos) && vocabulary.eos >= 0;
  return {};
}

void apply_companions(const Companions& companions, bool has_frame, Pipeline& pipeline) {
  const auto find = [&](std::string_view text) {
    for (std::size_t id = 0; id < pipeline.tokens.size(); ++id) {
      if (pipeline.tokens[id].text == text) {
        return static_cast<TokenId>(id);
      }
    }
    return TokenId{-1};
  };
  if (companions.bos) {
    pipeline.bos = find(*companions.bos);
  } else if (!pipeline.prefix.empty()) {
    pipeline.bos = pipeline.prefix.front();
  }
  if (companions.eos) {
    pipeline.eos = find(*companions.eos);
  }
  for (const std::string_view name : kEndNames) {
    if (pipeline.eos < 0) {
      pipeline.eos = find(name);
    }
  }
  if (!has_frame && companions.add_bos.value_or(false) && pipeline.bos >= 0) {
    pipeline.prefix = {pipeline.bos};
  }
  if (!has_frame && companions.add_eos.value_or(false) && pipeline.eos >= 0) {
    pipeline.suffix = {pipeline.eos};
  }
}

}  // namespace protean
