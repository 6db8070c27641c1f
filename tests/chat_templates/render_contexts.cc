// Renders chat templates for compare.py: reads {"now": ..., "templates": [source], "contexts":
// [names a template is rendered with]} from the file named and prints, for each template, what it
// gives with each context: {"text": ...} or {"error": ...}.

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <ctime>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "chat/chat_template.h"

namespace protean {
namespace {

namespace json = boost::json;

json::object error_result(const Error& error) {
  return {{"error", error.message}};
}

json::object render(const ChatTemplate& compiled, const json::object& names, const std::tm& now) {
  ChatContext context;
  context.content_as_is = true;  // as it reaches Python
  context.now = now;
  context.bos_token = std::string(names.at("bos_token").as_string());
  context.eos_token = std::string(names.at("eos_token").as_string());
  context.add_generation_prompt = names.at("add_generation_prompt").as_bool();
  if (names.at("tools").is_array()) context.tools = names.at("tools").as_array();
  for (const auto& [name, value] : names) {
    if (name != "messages" && name != "tools") context.template_kwargs[name] = value;
  }
  const auto text = compiled.render(names.at("messages").as_array(), context);
  return text.ok() ? json::object{{"text", text->text}} : error_result(text.error());
}

json::array render_all(const json::value& cases) {
  std::tm now{};
  strptime(cases.at("now").as_string().c_str(), "%Y-%m-%dT%H:%M:%S", &now);
  json::array results;
  for (const json::value& source : cases.at("templates").as_array()) {
    const auto compiled = ChatTemplate::parse(source.as_string());
    json::array& of_template = results.emplace_back(json::array()).as_array();
    for (const json::value& context : cases.at("contexts").as_array()) {
      of_template.push_back(compiled.ok() ? render(*compiled, context.as_object(), now)
                                          : error_result(compiled.error()));
    }
  }
  return results;
}

}  // namespace
}  // namespace protean

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: render_contexts CASES.json\n";
    return 2;
  }
  try {
    std::ifstream file(argv[1], std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    std::cout << boost::json::serialize(protean::render_all(boost::json::parse(text)));
  } catch (const std::exception& error) {
    std::cerr << "render_contexts: " << argv[1] << ": " << error.what() << "\n";
    return 1;
  }
  return 0;
}
