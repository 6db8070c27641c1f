#include "server/llama/llama_answer.h"

#include <fmt/format.h>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <utility>

#include "base/units.h"

namespace protean {
namespace {

namespace json = boost::json;

double elapsed_ms(TimeNs from, TimeNs to) {
  return from < 0 || to < from ? 0.0
                               : static_cast<double>(to - from) / static_cast<double>(kNsPerMs);
}

// Adds the count, the time and the speed of the prompt's tokens or of the answer's.
void add_timing(json::object& timings, const std::string& name, std::int64_t count, double ms) {
  const auto tokens = static_cast<double>(count);
  timings[name + "_n"] = count;
  timings[name + "_ms"] = ms;
  timings[name + "_per_token_ms"] = count > 0 ? ms / tokens : 0.0;
  timings[name + "_per_second"] = ms > 0.0 ? 1000.0 * tokens / ms : 0.0;
}

json::object timings_of(const AnswerUsage& usage) {
  const std::int64_t cached = usage.cached_tokens.value_or(0);
  json::object timings{{"cache_n", cached}};
  add_timing(timings, "prompt", usage.prompt_tokens - cached,
             elapsed_ms(usage.times.scheduled_ns, usage.times.first_token_ns));
  add_timing(timings, "predicted", usage.output_tokens,
             elapsed_ms(usage.times.first_token_ns, usage.times.finished_ns));
  return timings;
}

// Returns only these fields of an answer.
json::object chosen(const json::object& answer, const std::vector<std::string>& fields) {
  json::object shown;
  for (const std::string& name : fields) {
    const json::object* inside = &answer;
    std::string_view rest = name;
    for (std::size_t slash = rest.find('/'); inside != nullptr && slash != std::string_view::npos;
         slash = rest.find('/')) {
      const json::value* inner = inside->if_contains(rest.substr(0, slash));
      inside = inner == nullptr ? nullptr : inner->if_object();
      rest.remove_prefix(slash + 1);
    }
    const json::value* value = inside == nullptr ? nullptr : inside->if_contains(rest);
    if (value != nullptr) {
      shown[name] = *value;
    }
  }
  return shown;
}

class LlamaWriter : public AnswerWriter {
 public:
  LlamaWriter(AnswerIdentity identity, std::vector<std::string> fields)
      : identity_(std::move(identity)), fields_(std::move(fields)) {}

  std::string begin(const AnswerUsage&) override { return {}; }

  std::string piece(int, const AnswerPiece& piece, const AnswerUsage& so_far) override {
    std::string text;
    for (const ToolPiece& part : piece.parts) {
      text += text_of(part);
    }
    note(text);
    return event({{"index", 0},
                  {"content", text},
                  {"tokens", ids_of(piece.tokens)},
                  {"stop", false},
                  {"id_slot", -1},
                  {"tokens_predicted", so_far.output_tokens},
                  {"tokens_evaluated", so_far.prompt_tokens}});
  }

  std::string end_choice(int, const ChoiceEnd& end, const AnswerUsage&) override {
    end_ = end;
    return {};
  }

  std::string end(const AnswerUsage& usage) override { return event(ending("", {}, usage)); }
  std::string error(const ApiError& error) override {
    return fmt::format("data: {}\n\n", error_json(error));
  }

  std::string whole(std::span<const AnswerChoice> choices, const AnswerUsage& usage) override {
    const SortedAnswer answer = sorted(choices.front());
    end_ = choices.front().end;
    note(answer.text);
    const json::object body = ending(answer.text, ids_of(answer.tokens), usage);
    return json::serialize(fields_.empty() ? body : chosen(body, fields_));
  }

 private:
  static std::string event(const json::object& what) {
    return fmt::format("data: {}\n\n", json::serialize(what));
  }

  static json::array ids_of(const std::vector<AnswerToken>& tokens) {
    json::array ids;
    for (const AnswerToken& token : tokens) {
      ids.push_back(token.token);
    }
    return ids;
  }

  void note(std::string_view text) { has_line_ |= text.find('\n') != std::string_view::npos; }

  json::object ending(std::string_view text, json::array tokens, const AnswerUsage& usage) const {
    const std::string* word = std::get_if<std::string>(&end_.stop_reason);
    return {{"index", 0},
            {"content", text},
            {"tokens", std::move(tokens)},
            {"id_slot", -1},
            {"stop", true},
            {"model", identity_.model},
            {"tokens_predicted", usage.output_tokens},
            {"tokens_evaluated", usage.prompt_tokens},
            {"has_new_line", has_line_},
            {"truncated", false},
            {"stop_type", end_.reason == EndReason::kLength ? "limit"
                          : word != nullptr                 ? "word"
                                                            : "eos"},
            {"stopping_word", word == nullptr ? "" : *word},
            {"tokens_cached", usage.cached_tokens.value_or(0)},
            {"timings", timings_of(usage)}};
  }

  const AnswerIdentity identity_;
  const std::vector<std::string> fields_;
  ChoiceEnd end_;
  bool has_line_ = false;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_llama_writer(AnswerIdentity identity,
                                                std::vector<std::string> fields) {
  return std::make_unique<LlamaWriter>(std::move(identity), std::move(fields));
}

}  // namespace protean
