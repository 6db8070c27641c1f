#pragma once

#include <boost/json/array.hpp>

namespace protean {

// What chat templates disagree on about OpenAI's messages. By default, content stays as it is and
// the arguments of a tool call, which OpenAI sends as text, become the object they hold.
struct MessageForm {
  bool text_as_parts = false;      // content that is text becomes one part of type "text"
  bool null_as_empty = false;      // an assistant's null content becomes ""
  bool arguments_as_text = false;  // arguments become JSON text
};

// The messages as a template of that form reads them. Arguments that hold no object stay as they
// are.
boost::json::array in_form(boost::json::array messages, const MessageForm& form);

}  // namespace protean
