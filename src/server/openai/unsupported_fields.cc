#include "server/openai/unsupported_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace protean {
namespace {

namespace json = boost::json;

// Values of a field that mean the same as its absence.
enum class Neutral { kNothing, kEmpty, kFalse };

struct Unsupported {
  std::string_view field;
  Neutral neutral;
  std::string_view what;
};

constexpr std::array kUnsupported{
    Unsupported{"use_beam_search", Neutral::kFalse, "beam search"},
    Unsupported{"structural_tag", Neutral::kNothing, "structure between tags"},
    Unsupported{"logits_processors", Neutral::kEmpty, "code in requests"},
    Unsupported{"kv_transfer_params", Neutral::kEmpty, "moving KV between servers"},
};

constexpr std::array kUnsupportedInChat{
    Unsupported{"functions", Neutral::kEmpty, "the older form of tools"},
    Unsupported{"function_call", Neutral::kNothing, "the older form of tool_choice"},
    Unsupported{"documents", Neutral::kEmpty, "attaching documents"},
    Unsupported{"audio", Neutral::kNothing, "audio"},
    Unsupported{"prediction", Neutral::kNothing, "a predicted output"},
    Unsupported{"web_search_options", Neutral::kNothing, "searching the web"},
    Unsupported{"chat_template", Neutral::kNothing, "a chat template per request"},
    Unsupported{"echo", Neutral::kFalse, "repeating the prompt"},
};

constexpr std::array kUnsupportedInCompletions{
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
      return value == false;
  }
  return false;
}

void refuse_modalities(FieldReader& fields) {
  const json::array* modalities = fields.array("modalities");
  if (modalities != nullptr && *modalities != json::array{"text"}) {
    fields.fail("modalities",
                "modalities must be [\"text\"]: answers of other kinds are not supported");
  }
}

}  // namespace

void refuse_unsupported(FieldReader& fields, bool chat) {
  const auto refuse = [&fields](const Unsupported& row) {
    const json::value* value = fields.refused(row.field);
    if (value != nullptr && !is_neutral(*value, row.neutral)) {
      fields.fail(row.field, fmt::format("{} is not supported: {} is not implemented yet",
                                         row.field, row.what));
    }
  };
  std::for_each(kUnsupported.begin(), kUnsupported.end(), refuse);
  if (chat) {
    std::for_each(kUnsupportedInChat.begin(), kUnsupportedInChat.end(), refuse);
    refuse_modalities(fields);
  } else {
    std::for_each(kUnsupportedInCompletions.begin(), kUnsupportedInCompletions.end(), refuse);
  }
}

}  // namespace protean
