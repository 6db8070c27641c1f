#include "server/generation_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/value.hpp>
#include <limits>

#include "server/field_reader.h"
#include "server/unsupported_fields.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxStopStrings = 16;
// Of a stop string and of cache_salt: every choice has its own of these, or of what they become.
constexpr std::size_t kMaxShortText = 1024;
constexpr std::size_t kMaxStopTokenIds = 1024;
constexpr std::int64_t kLargestTokenId = std::numeric_limits<TokenId>::max();
constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

SamplingFields read_sampling(FieldReader& fields) {
  SamplingFields read;
  read.temperature = fields.number("temperature", {.low = 0, .high = 100});
  read.top_p = fields.number("top_p", {.low = 0, .high = 1, .low_included = false});
  read.min_p = fields.number("min_p", {.low = 0, .high = 1});
  if (const auto top_k = fields.integer("top_k", -1, kNoLimit)) {
    read.top_k = static_cast<int>(
        std::clamp(*top_k, std::int64_t{0}, std::int64_t{std::numeric_limits<int>::max()}));
  }
  if (const json::value* seed = fields.find("seed"); seed != nullptr && seed->is_uint64()) {
    read.seed = seed->get_uint64();
  } else if (seed != nullptr) {
    constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
    if (const auto number = as_integer(*seed, kLowest, kNoLimit)) {
      read.seed = static_cast<std::uint64_t>(*number);
    } else {
      fields.expect("seed",
                    fmt::format("an integer from {} to {}, in digits only", kLowest,
                                std::numeric_limits<std::uint64_t>::max()),
                    *seed);
    }
  }
  return read;
}

void read_stop_strings(FieldReader& fields, StopFields& read) {
  const json::value* stop = fields.find("stop");
  if (stop == nullptr) {
    return;
  }
  if (!stop->is_string() && !stop->is_array()) {
    return fields.expect("stop", "a string or an array of strings", *stop);
  }
  const json::array list = stop->is_array() ? stop->get_array() : json::array{*stop};
  if (list.size() > kMaxStopStrings) {
    return fields.fail("stop", fmt::format("stop has {} strings, at most {} are allowed",
                                           list.size(), kMaxStopStrings));
  }
  for (const json::value& one : list) {
    if (!one.is_string() || one.get_string().empty()) {
      return fields.fail("stop", fmt::format("stop must hold non-empty strings, not {}",
                                             one.is_string() ? "an empty one" : describe(one)));
    }
    if (one.get_string().size() > kMaxShortText) {
      return fields.fail("stop", fmt::format("stop holds a string of {} bytes, at most {} are "
                                             "allowed",
                                             one.get_string().size(), kMaxShortText));
    }
    read.strings.emplace_back(std::string_view(one.get_string()));
  }
}

StopFields read_stop(FieldReader& fields) {
  StopFields read;
  read_stop_strings(fields, read);
  read.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  read.keep_string = fields.boolean("include_stop_str_in_output").value_or(false);
  const json::array* ids = fields.array("stop_token_ids");
  if (ids != nullptr && ids->size() > kMaxStopTokenIds) {
    fields.fail("stop_token_ids",
                fmt::format("stop_token_ids has {} entries, at most {} are allowed", ids->size(),
                            kMaxStopTokenIds));
    return read;
  }
  for (std::size_t i = 0; ids != nullptr && i < ids->size(); ++i) {
    const auto id = as_integer((*ids)[i], 0, kLargestTokenId);
    if (!id) {
      fields.fail("stop_token_ids", fmt::format("stop_token_ids[{}] must be a token id, not {}", i,
                                                describe((*ids)[i])));
      return read;
    }
    read.token_ids.push_back(static_cast<TokenId>(*id));
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
    FieldReader options(*object, "stream_options.");
    read.usage = options.boolean("include_usage").value_or(false);
    read.continuous_usage = options.boolean("continuous_usage_stats").value_or(false) && read.usage;
    if (options.failed()) {
      fields.fail(options.error()->param, options.error()->message);
    }
  }
  return read;
}

// What both kinds of completion have.
void read_common(FieldReader& fields, GenerationCall& call) {
  call.model = fields.string("model").value_or("");
  call.sampling = read_sampling(fields);
  call.stop = read_stop(fields);
  call.stream = read_stream(fields);
  const auto max_tokens = fields.integer("max_tokens", 1, kNoLimit);
  const auto newer_name = fields.integer("max_completion_tokens", 1, kNoLimit);
  call.max_tokens = newer_name ? newer_name : max_tokens;
  call.add_special_tokens = fields.boolean("add_special_tokens");
  if (const auto salt = fields.string("cache_salt")) {
    if (salt->empty()) {
      fields.fail("cache_salt", "cache_salt must not be empty: leave it out to share the cache");
    }
    if (salt->size() > kMaxShortText) {
      fields.fail("cache_salt", fmt::format("cache_salt has {} bytes, at most {} are allowed",
                                            salt->size(), kMaxShortText));
    }
    call.cache_salt = *salt;
  }
  refuse_unsupported(fields, call.chat());
}

// The text of content given as parts; a part that is no text cannot be shown to the model.
std::optional<std::string> join_parts(const json::array& parts, std::string_view where,
                                      FieldReader& fields) {
  std::string joined;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const json::object* part = parts[i].if_object();
    const json::value* type = part == nullptr ? nullptr : part->if_contains("type");
    const json::value* text = part == nullptr ? nullptr : part->if_contains("text");
    if (type != nullptr && type->is_string() && type->get_string() != "text") {
      fields.fail("messages",
                  fmt::format("{}[{}] is of type \"{}\", but this model reads text only", where, i,
                              excerpt(type->get_string())));
      return std::nullopt;
    }
    if (type == nullptr || !type->is_string() || text == nullptr || !text->is_string()) {
      fields.fail("messages",
                  fmt::format("{}[{}] must be an object with type \"text\" and a text", where, i));
      return std::nullopt;
    }
    joined += (i == 0 ? "" : "\n");
    joined += std::string_view(text->get_string());
  }
  return joined;
}

void check_message(json::value& message, std::size_t index, FieldReader& fields) {
  const std::string where = fmt::format("messages[{}]", index);
  json::object* object = message.if_object();
  const json::value* role = object == nullptr ? nullptr : object->if_contains("role");
  if (role == nullptr || !role->is_string() || role->get_string().empty()) {
    return fields.fail("messages", where + " must be an object with a role");
  }
  const bool may_be_silent = role->get_string() == "assistant";  // it may have called tools instead
  json::value& content = (*object)["content"];  // templates expect it: null when it was left out
  if (content.is_null()) {
    if (!may_be_silent) {
      fields.fail("messages", where + ".content is missing");
    }
  } else if (const json::array* parts = content.if_array()) {
    if (auto joined = join_parts(*parts, where + ".content", fields)) {
      content = *joined;
    }
  } else if (!content.is_string()) {
    fields.fail("messages", fmt::format("{}.content must be a string or an array of parts, not {}",
                                        where, describe(content)));
  }
}

ChatInput read_chat_input(FieldReader& fields, json::object& body) {
  ChatInput read;
  read.add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  if (const json::object* kwargs = fields.object("chat_template_kwargs")) {
    read.template_kwargs = *kwargs;
  }
  if (const auto effort = fields.string("reasoning_effort")) {
    read.template_kwargs.insert({{"reasoning_effort", *effort}});  // kwargs win
  }
  const json::array* messages = fields.array("messages");
  if (messages == nullptr || messages->empty()) {
    fields.fail("messages", "messages is required: an array of at least one message");
    return read;
  }
  read.messages = std::move(body["messages"].get_array());
  for (std::size_t i = 0; i < read.messages.size() && !fields.failed(); ++i) {
    check_message(read.messages[i], i, fields);
  }
  return read;
}

std::optional<std::vector<TokenId>> read_tokens(const json::array& list, std::string_view where,
                                                FieldReader& fields) {
  std::vector<TokenId> tokens;
  tokens.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto id = as_integer(list[i], 0, kLargestTokenId);
    if (!id) {
      fields.fail("prompt",
                  fmt::format("{}[{}] must be a token id, not {}", where, i, describe(list[i])));
      return std::nullopt;
    }
    tokens.push_back(static_cast<TokenId>(*id));
  }
  return tokens;
}

CompletionInput read_completion_input(FieldReader& fields) {
  CompletionInput read;
  const json::value* prompt = fields.find("prompt");
  if (prompt != nullptr && prompt->is_string()) {
    read.prompts.emplace_back(std::string(std::string_view(prompt->get_string())));
    return read;
  }
  const json::array* list = prompt == nullptr ? nullptr : prompt->if_array();
  if (list == nullptr || list->empty()) {
    fields.fail("prompt",
                "prompt is required: a string, an array of strings, an array of token ids, or an "
                "array of such arrays");
    return read;
  }
  if ((*list)[0].is_number()) {
    if (auto tokens = read_tokens(*list, "prompt", fields)) {
      read.prompts.emplace_back(std::move(*tokens));
    }
    return read;
  }
  read.prompts.reserve(list->size());
  for (std::size_t i = 0; i < list->size(); ++i) {
    const json::value& one = (*list)[i];
    const std::string where = fmt::format("prompt[{}]", i);
    if (one.is_string()) {
      read.prompts.emplace_back(std::string(std::string_view(one.get_string())));
    } else if (!one.is_array()) {
      fields.fail("prompt", fmt::format("{} must be a string or an array of token ids, not {}",
                                        where, describe(one)));
      return read;
    } else if (auto tokens = read_tokens(one.get_array(), where, fields)) {
      read.prompts.emplace_back(std::move(*tokens));
    } else {
      return read;
    }
  }
  return read;
}

Checked<GenerationCall> parse_call(json::value body, bool chat) {
  json::object* object = body.if_object();
  if (object == nullptr) {
    return ApiError{.message = "the body must be a JSON object, not " + describe(body)};
  }
  FieldReader fields(*object);
  GenerationCall call;
  if (chat) {
    call.input = ChatInput{};
    read_common(fields, call);
    call.input = read_chat_input(fields, *object);
  } else {
    call.input = CompletionInput{};
    read_common(fields, call);
    call.input = read_completion_input(fields);
  }
  if (fields.failed()) {
    return *fields.error();
  }
  return call;
}

}  // namespace

std::int64_t GenerationCall::choices() const {
  const CompletionInput* completion = std::get_if<CompletionInput>(&input);
  return completion == nullptr ? 1 : std::ssize(completion->prompts);
}

Checked<GenerationCall> parse_chat_call(json::value body) {
  return parse_call(std::move(body), true);
}

Checked<GenerationCall> parse_completion_call(json::value body) {
  return parse_call(std::move(body), false);
}

}  // namespace protean
