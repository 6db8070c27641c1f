#include "server/unsupported_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

namespace protean {
namespace {

namespace json = boost::json;

// The value of a field that is the same as not giving it.
enum class Neutral { kNothing, kEmpty, kFalse, kTrue, kZero, kOne };

struct Unsupported {
  std::string_view field;
  Neutral neutral;
  std::string_view what;
};

constexpr std::array kUnsupported{
    Unsupported{"n", Neutral::kOne, "several choices per prompt"},
    Unsupported{"best_of", Neutral::kOne, "choosing among several answers"},
    Unsupported{"use_beam_search", Neutral::kFalse, "beam search"},
    Unsupported{"presence_penalty", Neutral::kZero, "a penalty"},
    Unsupported{"frequency_penalty", Neutral::kZero, "a penalty"},
    Unsupported{"repetition_penalty", Neutral::kOne, "a penalty"},
    Unsupported{"logit_bias", Neutral::kEmpty, "biasing logits"},
    Unsupported{"allowed_token_ids", Neutral::kEmpty, "restricting tokens"},
    Unsupported{"bad_words", Neutral::kEmpty, "restricting tokens"},
    Unsupported{"min_tokens", Neutral::kZero, "a least answer length"},
    Unsupported{"logprobs", Neutral::kFalse, "returning log probabilities"},
    Unsupported{"top_logprobs", Neutral::kZero, "returning log probabilities"},
    Unsupported{"prompt_logprobs", Neutral::kNothing, "returning log probabilities"},
    Unsupported{"return_token_ids", Neutral::kFalse, "returning token ids"},
    Unsupported{"return_tokens_as_token_ids", Neutral::kFalse, "returning token ids"},
    Unsupported{"skip_special_tokens", Neutral::kTrue, "showing special tokens"},
    Unsupported{"truncate_prompt_tokens", Neutral::kNothing, "truncating the prompt"},
    Unsupported{"structured_outputs", Neutral::kEmpty, "structured output"},
    Unsupported{"guided_json", Neutral::kNothing, "structured output"},
    Unsupported{"guided_regex", Neutral::kNothing, "structured output"},
    Unsupported{"guided_choice", Neutral::kNothing, "structured output"},
    Unsupported{"guided_grammar", Neutral::kNothing, "structured output"},
    Unsupported{"grammar", Neutral::kEmpty, "structured output"},
    Unsupported{"json_schema", Neutral::kNothing, "structured output"},
};

constexpr std::array kUnsupportedInChat{
    Unsupported{"tools", Neutral::kEmpty, "tool calling"},
    Unsupported{"functions", Neutral::kEmpty, "tool calling"},
    Unsupported{"documents", Neutral::kEmpty, "attaching documents"},
    Unsupported{"audio", Neutral::kNothing, "audio"},
    Unsupported{"chat_template", Neutral::kNothing, "a chat template per request"},
    Unsupported{"continue_final_message", Neutral::kFalse, "continuing the last message"},
    Unsupported{"echo", Neutral::kFalse, "repeating the prompt"},
};

constexpr std::array kUnsupportedInCompletions{
    Unsupported{"echo", Neutral::kFalse, "repeating the prompt"},
    Unsupported{"suffix", Neutral::kEmpty, "filling in the middle"},
    Unsupported{"prompt_embeds", Neutral::kEmpty, "prompts as embeddings"},
};

bool is_neutral(const json::value& value, Neutral neutral) {
  switch (neutral) {
    case Neutral::kNothing:
      return false;
    case Neutral::kEmpty:
      return (value.is_array() && value.get_array().empty()) ||
             (value.is_object() && value.get_object().empty()) ||
             (value.is_string() && value.get_string().empty());
    case Neutral::kFalse:
    case Neutral::kTrue:
      return value.is_bool() && value.get_bool() == (neutral == Neutral::kTrue);
    case Neutral::kZero:
    case Neutral::kOne:
      return value.is_number() && value.to_number<double>() == (neutral == Neutral::kOne ? 1 : 0);
  }
  return false;
}

// {"type": "text"} asks for what happens anyway.
void refuse_formats(FieldReader& fields) {
  if (const json::object* format = fields.object("response_format")) {
    const json::value* type = format->if_contains("type");
    if (type == nullptr || !type->is_string() || type->get_string() != "text") {
      fields.fail("response_format",
                  "response_format is only supported with type \"text\": structured output is not "
                  "implemented yet");
    }
  }
}

void refuse_modalities(FieldReader& fields) {
  const json::array* modalities = fields.array("modalities");
  if (modalities != nullptr && *modalities != json::array{"text"}) {
    fields.fail("modalities",
                "modalities must be [\"text\"]: answers of other kinds are not supported");
  }
}

void refuse_tool_choice(FieldReader& fields) {
  const json::value* choice = fields.find("tool_choice");
  if (choice != nullptr && *choice != "none" && *choice != "auto") {
    fields.fail("tool_choice",
                "tool_choice must be \"none\" or \"auto\": tool calling is not "
                "implemented yet");
  }
}

}  // namespace

void refuse_unsupported(FieldReader& fields, bool chat) {
  const auto refuse = [&fields](const Unsupported& row) {
    const json::value* value = fields.find(row.field);
    if (value != nullptr && !is_neutral(*value, row.neutral)) {
      fields.fail(row.field, fmt::format("{} is not supported: {} is not implemented yet",
                                         row.field, row.what));
    }
  };
  for (const char* count : {"n", "best_of"}) {  // what is no count at all is told so first
    fields.integer(count, 1, std::numeric_limits<std::int64_t>::max());
  }
  std::for_each(kUnsupported.begin(), kUnsupported.end(), refuse);
  refuse_formats(fields);
  if (chat) {
    std::for_each(kUnsupportedInChat.begin(), kUnsupportedInChat.end(), refuse);
    refuse_tool_choice(fields);
    refuse_modalities(fields);
  } else {
    std::for_each(kUnsupportedInCompletions.begin(), kUnsupportedInCompletions.end(), refuse);
  }
}

}  // namespace protean
