#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "jinja/template.h"

namespace protean {

// What a template may refer to besides the messages.
struct ChatContext {
  std::string bos_token;
  std::string eos_token;
  bool add_generation_prompt = true;
  boost::json::array tools;             // OpenAI tool objects; empty = none
  boost::json::object template_kwargs;  // chat_template_kwargs of the request, passed as they are
  // Local time, as std::localtime gives it, for strftime_now(). Without it a template sees no such
  // function, and those that ask whether it is defined fall back to a fixed date.
  std::optional<std::tm> now;
  bool content_as_is = false;  // text stays text for a template that only reads parts, too
};

// A compiled chat template (jinja::Template). Immutable: any thread may render, with 1 MiB of free
// stack.
class ChatTemplate {
 public:
  // Errors say line and what is not understood.
  static Result<ChatTemplate> parse(std::string_view source);
  // "<|im_start|>role\ncontent<|im_end|>\n": for models that bring no template.
  static ChatTemplate chatml();

  // Messages as OpenAI's JSON objects. Arguments of earlier tool calls, which OpenAI sends as text,
  // reach the template as the object they hold, which is what templates are written for. Content
  // that is text reaches a template that only reads parts as one part of type "text".
  // raise_exception() in a template is an error with its text. A template that needs more than
  // some seconds, 512 MiB or 16 MiB of output is an error (kExhausted).
  Result<std::string> render(const boost::json::array& messages, const ChatContext& context) const;

 private:
  explicit ChatTemplate(jinja::Template compiled);
  jinja::Template compiled_;
  bool wants_parts_;  // found by trial when parsed
};

// What a model directory says about chatting: chat_template.jinja, else chat_template.json, else
// tokenizer_config.json's chat_template (a string, or a list of which "default" is taken); bos and
// eos text from tokenizer_config.json or special_tokens_map.json. A file that is not there is no
// error.
struct ChatFiles {
  std::string template_source;  // empty when the model has none
  std::string bos_token;
  std::string eos_token;
};
Result<ChatFiles> read_chat_files(const std::filesystem::path& directory);

}  // namespace protean
