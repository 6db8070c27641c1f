#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <filesystem>
#include <memory>
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
};

// A compiled chat template (Jinja). Immutable: any thread may render.
class ChatTemplate {
 public:
  // Errors say line and what is not understood.
  static Result<ChatTemplate> parse(std::string_view source);
  // "<|im_start|>role\ncontent<|im_end|>\n": for models that bring no template.
  static ChatTemplate chatml();

  // Messages as OpenAI's JSON objects. raise_exception() in a template is an error with its text.
  Result<std::string> render(const boost::json::array& messages, const ChatContext& context) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const jinja::Template> compiled);
  std::shared_ptr<const jinja::Template> compiled_;
};

// What a model directory says about chatting: tokenizer_config.json's chat_template (a string, or a
// list of which "default" is taken), chat_template.jinja, chat_template.json; bos and eos text.
struct ChatFiles {
  std::string template_source;  // empty when the model has none
  std::string bos_token;
  std::string eos_token;
};
Result<ChatFiles> read_chat_files(const std::filesystem::path& directory);

}  // namespace protean
