#pragma once

#include <boost/json/value.hpp>
#include <string>

#include "chat/ast.h"
#include "chat/chat_template.h"
#include "chat/runtime.h"

namespace protean::jinja {

// Views into the JSON, which must outlive the Runtime's values.
Value from_json(Runtime& runtime, const boost::json::value& json);

// ChatTemplate::render under given limits.
Result<std::string> render_chat(const Template& source, const boost::json::array& messages,
                                const ChatContext& context, const Limits& limits);

}  // namespace protean::jinja
