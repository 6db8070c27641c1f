#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "chat/message_form.h"
#include "jinja/template.h"

namespace protean {

// What a template may refer to in addition to the messages.
struct ChatContext {
  std::string bos_token;
  std::string eos_token;
  bool add_generation_prompt = true;
  boost::json::array tools;             // OpenAI's tool objects
  boost::json::object template_kwargs;  // chat_template_kwargs of the request
  // Local time, as std::localtime() returns it, for strftime_now(). Without it the function is not
  // defined, and most templates fall back to a fixed date.
  std::optional<std::tm> now;
  // Messages keep the default MessageForm, also if the template reads another one. Only comparisons
  // with other implementations of templates set it.
  bool content_as_is = false;
};

// A compiled chat template (jinja::Template). Immutable: any thread may render, with 1 MiB of free
// stack.
class ChatTemplate {
 public:
  // Errors say what is wrong and in which line.
  static Result<ChatTemplate> parse(std::string_view source);
  // Returns the ChatML template, for models without one: "<|im_start|>role\ncontent<|im_end|>\n".
  static ChatTemplate chatml();

  // Renders messages that are OpenAI's JSON objects, in the MessageForm that the template reads.
  // Fails with the template's text if it calls raise_exception(), and with kExhausted beyond
  // jinja::Limits.
  //
  // The result has the ranges that the template wrote (jinja::Template::render), including the
  // texts of BOS and EOS and the names of known roles. If special tokens are looked for in these
  // ranges only (EncodeOptions::special_in), no message, tool or keyword argument can produce one,
  // however the template trims, cuts, joins or quotes it.
  Result<jinja::MarkedText> render(const boost::json::array& messages,
                                   const ChatContext& context) const;

 private:
  explicit ChatTemplate(jinja::Template compiled);
  jinja::Template compiled_;
  MessageForm form_;  // found by trial when parsed
};

// The chat settings of a model directory. The template is in chat_template.jinja, else in
// chat_template.json, else in tokenizer_config.json (a string, or a list with an entry "default").
// BOS and EOS are in tokenizer_config.json or special_tokens_map.json. Missing files are not an
// error.
struct ChatFiles {
  std::string template_source;  // empty if the model has none
  std::string bos_token;
  std::string eos_token;
  friend bool operator==(const ChatFiles&, const ChatFiles&) = default;
};
Result<ChatFiles> read_chat_files(const std::filesystem::path& directory);

}  // namespace protean
