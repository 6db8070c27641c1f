#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "server/answer/answer_writer.h"

namespace protean {

inline constexpr std::string_view kMessageIdPrefix = "msg_";

// Writes answers of Anthropic's Messages API: a message of text and tool_use blocks, as events
// message_start, content_block_start, _delta and _stop, message_delta, message_stop.
// An answer that ended before max_tokens for want of room in the context says so.
std::unique_ptr<AnswerWriter> make_messages_writer(const AnswerIdentity& identity,
                                                   std::int64_t max_tokens);

}  // namespace protean
