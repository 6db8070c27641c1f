#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "server/answer/answer_writer.h"

namespace protean {

inline constexpr std::string_view kMessageIdPrefix = "msg_";

// Writes answers of Anthropic's Messages API: a message of text and tool_use blocks. Its events are
// message_start, content_block_start, _delta and _stop, message_delta and message_stop. The stop
// reason says if an answer ended before max_tokens because the context was full.
std::unique_ptr<AnswerWriter> make_messages_writer(const AnswerIdentity& identity,
                                                   std::int64_t max_tokens);

}  // namespace protean
