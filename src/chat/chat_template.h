#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace protean {

namespace jinja {
struct Template;
}

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
};

// How a template reads a message's content.
enum class ContentFormat : std::uint8_t {
  kText,   // as text; most of these take parts, too
  kParts,  // only as parts: [{"type": "text", "text": ...}]
};

// Every message's text content as one part.
boost::json::array with_content_parts(boost::json::array messages);

// A compiled chat template: Jinja2 as Hugging Face sets it up (sandboxed, immutable, trim_blocks,
// lstrip_blocks, loop controls, its tojson). What it has no word for, such as include or integers
// beyond 64 bits, is refused by name. Immutable: any thread may render, with 1 MiB of free stack.
class ChatTemplate {
 public:
  // Errors say line and what is not understood.
  static Result<ChatTemplate> parse(std::string_view source);
  // "<|im_start|>role\ncontent<|im_end|>\n": for models that bring no template.
  static ChatTemplate chatml();

  // Found by trial when parsed: kParts where text does not come out but parts do. render() takes
  // messages as they are, so the caller passes them through with_content_parts() then.
  ContentFormat content_format() const { return content_format_; }

  // Messages as OpenAI's JSON objects. Arguments of earlier tool calls, which OpenAI sends as text,
  // reach the template as the object they hold, which is what templates are written for.
  // raise_exception() in a template is an error with its text. A template that needs more than
  // some seconds, 512 MiB or 16 MiB of output is an error (kExhausted).
  Result<std::string> render(const boost::json::array& messages, const ChatContext& context) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const jinja::Template> compiled);
  std::shared_ptr<const jinja::Template> compiled_;
  ContentFormat content_format_;
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
