#include "server/call/sampling_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxStopStrings = 16;
constexpr std::size_t kMaxTokenIds = 1024;
constexpr std::size_t kMaxBiases = 4096;
constexpr std::size_t kMaxBadWords = 64;
constexpr std::int64_t kLargestTokenId = std::numeric_limits<TokenId>::max();

std::optional<std::uint64_t> read_seed(FieldReader& fields) {
  const json::value* seed = fields.find("seed");
  if (seed == nullptr) {
    return std::nullopt;
  }
  if (seed->is_uint64()) {
    return seed->get_uint64();
  }
  constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
  if (const auto number = as_integer(*seed, kLowest, kNoLimit)) {
    return static_cast<std::uint64_t>(*number);
  }
  fields.expect("seed",
                fmt::format("an integer from {} to {}, in digits only", kLowest,
                            std::numeric_limits<std::uint64_t>::max()),
                *seed);
  return std::nullopt;
}

// Reads a list of non-empty strings, or one such string.
std::vector<std::string> read_strings(FieldReader& fields, std::string_view name,
                                      std::size_t most) {
  std::vector<std::string> read;
  const json::value* value = fields.find(name);
  if (value == nullptr) {
    return read;
  }
  if (!value->is_string() && !value->is_array()) {
    fields.expect(name, "a string or an array of strings", *value);
    return read;
  }
  const json::array list = value->is_array() ? value->get_array() : json::array{*value};
  if (list.size() > most) {
    fields.fail(name,
                fmt::format("{} has {} strings, at most {} are allowed", name, list.size(), most));
    return read;
  }
  for (const json::value& one : list) {
    if (!one.is_string() || one.get_string().empty()) {
      fields.fail(name, fmt::format("{} must hold non-empty strings, not {}", name, describe(one)));
      return read;
    }
    if (one.get_string().size() > kMaxStopBytes) {
      fields.fail(name, fmt::format("{} holds a string of {} bytes, at most {} are allowed", name,
                                    one.get_string().size(), kMaxStopBytes));
      return read;
    }
    read.emplace_back(std::string_view(one.get_string()));
  }
  return read;
}

std::vector<TokenId> read_id_field(FieldReader& fields, std::string_view name, std::size_t most) {
  const json::array* list = fields.array(name);
  if (list == nullptr) {
    return {};
  }
  if (list->size() > most) {
    fields.fail(name,
                fmt::format("{} has {} entries, at most {} are allowed", name, list->size(), most));
    return {};
  }
  return read_token_ids(*list, name, name, fields).value_or(std::vector<TokenId>{});
}

std::vector<TokenBias> read_bias(FieldReader& fields) {
  std::vector<TokenBias> read;
  const json::object* object = fields.object("logit_bias");
  if (object == nullptr) {
    return read;
  }
  if (object->size() > kMaxBiases) {
    fields.fail("logit_bias", fmt::format("logit_bias has {} entries, at most {} are allowed",
                                          object->size(), kMaxBiases));
    return read;
  }
  for (const auto& [key, value] : *object) {
    const std::string_view text = key;
    TokenId id = 0;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (ec != std::errc{} || end != text.data() + text.size() || id < 0) {
      fields.fail("logit_bias", fmt::format("the keys of logit_bias must be token ids, not \"{}\"",
                                            excerpt(text)));
      return read;
    }
    const double bias =
        value.is_number() ? value.to_number<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(std::abs(bias) <= 100)) {
      fields.fail("logit_bias",
                  fmt::format("logit_bias[\"{}\"] must be a number from -100 to 100, not {}", id,
                              describe(value)));
      return read;
    }
    read.push_back({id, static_cast<float>(bias)});
  }
  return read;
}

}  // namespace

std::optional<std::vector<TokenId>> read_token_ids(const json::array& list, std::string_view where,
                                                   std::string_view field, FieldReader& fields) {
  std::vector<TokenId> tokens;
  tokens.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto id = as_integer(list[i], 0, kLargestTokenId);
    if (!id) {
      fields.fail(field,
                  fmt::format("{}[{}] must be a token id, not {}", where, i, describe(list[i])));
      return std::nullopt;
    }
    tokens.push_back(static_cast<TokenId>(*id));
  }
  return tokens;
}

SamplingFields read_sampling(FieldReader& fields) {
  SamplingFields read;
  read.temperature = fields.number("temperature");
  read.top_p = fields.number("top_p");
  read.min_p = fields.number("min_p");
  if (const auto top_k = fields.integer("top_k")) {
    read.top_k = static_cast<int>(
        std::clamp(*top_k, std::int64_t{0}, std::int64_t{std::numeric_limits<int>::max()}));
  }
  read.seed = read_seed(fields);
  read.repetition_penalty = fields.number("repetition_penalty");
  read.presence_penalty = fields.number("presence_penalty");
  read.frequency_penalty = fields.number("frequency_penalty");
  return read;
}

TokenFields read_token_rules(FieldReader& fields) {
  TokenFields read;
  read.bias = read_bias(fields);
  read.bad_words = read_strings(fields, "bad_words", kMaxBadWords);
  read.allowed = read_id_field(fields, "allowed_token_ids", kMaxTokenIds);
  std::sort(read.allowed.begin(), read.allowed.end());
  read.allowed.erase(std::unique(read.allowed.begin(), read.allowed.end()), read.allowed.end());
  return read;
}

StopFields read_stop(FieldReader& fields) {
  StopFields read;
  read.strings = read_strings(fields, "stop", kMaxStopStrings);
  read.token_ids = read_id_field(fields, "stop_token_ids", kMaxTokenIds);
  read.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  read.keep_string = fields.boolean("include_stop_str_in_output").value_or(false);
  read.min_tokens = fields.integer("min_tokens").value_or(0);
  return read;
}

CompletionInput read_completion_input(FieldReader& fields, std::string_view name) {
  CompletionInput read;
  const json::value* prompt = fields.find(name);
  if (prompt != nullptr && prompt->is_string()) {
    read.prompts.emplace_back(std::string(std::string_view(prompt->get_string())));
    return read;
  }
  const json::array* list = prompt == nullptr ? nullptr : prompt->if_array();
  if (list == nullptr || list->empty()) {
    fields.fail(name,
                fmt::format("{} is required: a string, an array of strings, an array of token "
                            "ids, or an array of such arrays",
                            name));
    return read;
  }
  if ((*list)[0].is_number()) {
    if (auto tokens = read_token_ids(*list, name, name, fields)) {
      read.prompts.emplace_back(std::move(*tokens));
    }
    return read;
  }
  read.prompts.reserve(list->size());
  for (std::size_t i = 0; i < list->size(); ++i) {
    const json::value& one = (*list)[i];
    const std::string where = fmt::format("{}[{}]", name, i);
    if (one.is_string()) {
      read.prompts.emplace_back(std::string(std::string_view(one.get_string())));
    } else if (!one.is_array()) {
      fields.fail(name, fmt::format("{} must be a string or an array of token ids, not {}", where,
                                    describe(one)));
      return read;
    } else if (auto tokens = read_token_ids(one.get_array(), where, name, fields)) {
      read.prompts.emplace_back(std::move(*tokens));
    } else {
      return read;
    }
  }
  return read;
}

PromptFields read_prompt_fields(FieldReader& fields) {
  PromptFields read;
  read.add_special_tokens = fields.boolean("add_special_tokens");
  if (const auto length = fields.integer_within("truncate_prompt_tokens", -1, kNoLimit)) {
    read.truncate_to = length;
    if (*length == 0) {
      fields.fail("truncate_prompt_tokens", "truncate_prompt_tokens must be -1 or at least 1");
    }
  }
  return read;
}

StreamFields read_stream(FieldReader& fields) {
  StreamFields read;
  read.enabled = fields.boolean("stream").value_or(false);
  if (const json::object* object = fields.object("stream_options")) {
    if (!read.enabled) {
      fields.fail("stream_options", "stream_options is only allowed when stream is true");
    }
    FieldReader options(*object, kStreamOptionsTable, "stream_options.");
    read.usage = options.boolean("include_usage").value_or(false);
    read.continuous_usage = options.boolean("continuous_usage_stats").value_or(false) && read.usage;
    fields.adopt(options);
  }
  return read;
}

UrgencyFields read_urgency(FieldReader& fields) {
  UrgencyFields read;
  read.priority = static_cast<int>(fields.integer("priority").value_or(0));
  if (const auto seconds = fields.number("timeout")) {
    read.timeout_ms = std::max<std::int64_t>(1, std::llround(*seconds * 1000.0));
  }
  return read;
}

ReportFields read_report(FieldReader& fields, bool chat) {
  ReportFields read;
  if (chat) {
    read.logprobs = fields.boolean("logprobs").value_or(false);
    if (const auto top = fields.integer("top_logprobs")) {
      read.top_logprobs = static_cast<int>(*top);
      if (*top > 0 && !read.logprobs) {
        fields.fail("top_logprobs", "top_logprobs is only allowed when logprobs is true");
      }
    }
  } else if (const json::value* count = fields.find("logprobs");
             count != nullptr && *count != false) {  // some chat clients always send false
    if (const auto top = fields.integer_within("logprobs", 0, kMostTopLogprobs)) {
      read.logprobs = true;
      read.top_logprobs = static_cast<int>(*top);
    }
  }
  if (const auto top = fields.integer("prompt_logprobs")) {
    read.prompt_logprobs = static_cast<int>(*top);
  }
  read.token_ids = fields.boolean("return_token_ids").value_or(false);
  read.tokens_as_ids = fields.boolean("return_tokens_as_token_ids").value_or(false);
  read.show_special_tokens = !fields.boolean("skip_special_tokens").value_or(true);
  return read;
}

}  // namespace protean
