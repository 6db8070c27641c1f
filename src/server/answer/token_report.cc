#include "server/answer/token_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <boost/json/string_view.hpp>
#include <cmath>

#include "tokenizer/utf8.h"

namespace protean {
namespace {

constexpr float kLeastLogprob = -9999.0F;

std::string number(float logprob) {
  return fmt::format("{}",
                     std::isfinite(logprob) ? std::max(logprob, kLeastLogprob) : kLeastLogprob);
}

std::span<const TokenLogprob> first(const TokenLogprobs& logprobs, int top) {
  return std::span(logprobs.top)
      .first(std::min(logprobs.top.size(), static_cast<std::size_t>(std::max(top, 0))));
}

std::int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

}  // namespace

std::string by_precision(const AnswerUsage& usage) {
  std::string json;
  for (const TokensAt& at : usage.output_at) {
    json += fmt::format(R"({}"{}":{})", json.empty() ? "" : ",", at.precision, at.tokens);
  }
  return json.empty() ? json : R"(,"output_tokens_by_precision":{)" + json + "}";
}

std::string json_text(std::string_view text) {
  return boost::json::serialize(boost::json::string_view(text));
}

std::string json_ids(std::span<const AnswerToken> tokens) {
  std::string json = "[";
  for (const AnswerToken& token : tokens) {
    json += fmt::format("{}{}", json.size() == 1 ? "" : ",", token.token);
  }
  return json + "]";
}

std::string TokenReport::name(TokenId token) const {
  if (as_ids_) {
    return fmt::format("token_id:{}", token);
  }
  const std::string_view bytes = tokenizer_->bytes(token);
  if (bytes.empty()) {
    return std::string(tokenizer_->token_text(token));
  }
  if (utf8_valid_prefix(bytes) == bytes.size()) {
    return std::string(bytes);
  }
  std::string shown = "bytes:";
  for (const char c : bytes) {
    shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return shown;
}

std::string TokenReport::bytes(TokenId token) const {
  const std::string_view bytes = tokenizer_->bytes(token);
  if (bytes.empty()) {
    return "null";
  }
  std::string json = "[";
  for (const char c : bytes) {
    json += fmt::format("{}{}", json.size() == 1 ? "" : ",", static_cast<unsigned char>(c));
  }
  return json + "]";
}

std::string TokenReport::tokens_json(std::span<const AnswerToken> tokens, int top) const {
  const auto entry = [this](TokenId token, float logprob) {
    return fmt::format(R"({{"token":{},"logprob":{},"bytes":{})", json_text(name(token)),
                       number(logprob), bytes(token));
  };
  std::string content;
  for (const AnswerToken& token : tokens) {
    if (!token.logprobs) {
      continue;
    }
    std::string others;
    for (const TokenLogprob& other : first(*token.logprobs, top)) {
      others += fmt::format("{}{}}}", others.empty() ? "" : ",", entry(other.token, other.logprob));
    }
    content += fmt::format(R"({}{},"top_logprobs":[{}]}})", content.empty() ? "" : ",",
                           entry(token.token, token.logprobs->logprob), others);
  }
  return content;
}

std::string TokenReport::chat_logprobs(std::span<const AnswerToken> tokens, int top) const {
  return fmt::format(R"({{"content":[{}],"refusal":null}})", tokens_json(tokens, top));
}

std::string TokenReport::completion_logprobs(std::span<const AnswerToken> tokens, int top,
                                             std::int64_t& offset) const {
  std::string names;
  std::string logprobs;
  std::string tops;
  std::string offsets;
  for (const AnswerToken& token : tokens) {
    const char* comma = names.empty() ? "" : ",";
    names.append(comma).append(json_text(name(token.token)));
    offsets += fmt::format("{}{}", comma, std::max<std::int64_t>(offset, 0));
    offset += characters(tokenizer_->bytes(token.token));
    if (!token.logprobs) {
      logprobs.append(comma).append("null");
      tops.append(comma).append("null");
      continue;
    }
    logprobs.append(comma).append(number(token.logprobs->logprob));
    std::vector<std::string> seen{name(token.token)};  // two tokens may have the same name
    std::string one = fmt::format("{}:{}", json_text(seen[0]), number(token.logprobs->logprob));
    for (const TokenLogprob& other : first(*token.logprobs, top)) {
      const std::string key = name(other.token);
      if (std::find(seen.begin(), seen.end(), key) == seen.end()) {
        one += fmt::format(",{}:{}", json_text(key), number(other.logprob));
        seen.push_back(key);
      }
    }
    tops += fmt::format("{}{{{}}}", comma, one);
  }
  return fmt::format(
      R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":{},"text_offset":[{}]}})", names,
      logprobs, top > 0 ? fmt::format("[{}]", tops) : "null", offsets);
}

std::string TokenReport::prompt_logprobs(std::span<const AnswerToken> tokens, int top) const {
  std::string json;
  for (const AnswerToken& token : tokens) {
    json += json.empty() ? "[" : ",";
    if (!token.logprobs) {
      json += "null";
      continue;
    }
    const auto entry = [this](TokenId id, float logprob, int rank) {
      return fmt::format(R"("{}":{{"logprob":{},"rank":{},"decoded_token":{}}})", id,
                         number(logprob), rank, json_text(name(id)));
    };
    std::string one = entry(token.token, token.logprobs->logprob, token.logprobs->rank);
    int rank = 0;
    for (const TokenLogprob& other : first(*token.logprobs, top)) {
      ++rank;
      if (other.token != token.token) {
        one.append(",").append(entry(other.token, other.logprob, rank));
      }
    }
    json += fmt::format("{{{}}}", one);
  }
  return json.empty() ? "[]" : json + "]";
}

}  // namespace protean
