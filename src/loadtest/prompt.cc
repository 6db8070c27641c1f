#include "loadtest/prompt.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cmath>

#include "trace/text.h"

namespace protean::loadtest {
namespace {

// Short common words. Most tokenizers have one token for each.
constexpr std::array<std::string_view, 128> kWords = {
    "the",   "and",   "that",  "have",   "with",   "this",   "from",  "they", "say",   "her",
    "she",   "will",  "one",   "all",    "would",  "there",  "their", "what", "out",   "about",
    "who",   "get",   "which", "go",     "when",   "make",   "can",   "like", "time",  "just",
    "him",   "know",  "take",  "people", "into",   "year",   "your",  "good", "some",  "could",
    "them",  "see",   "other", "than",   "then",   "now",    "look",  "only", "come",  "over",
    "think", "also",  "back",  "after",  "use",    "two",    "how",   "our",  "work",  "first",
    "well",  "way",   "even",  "new",    "want",   "any",    "these", "give", "day",   "most",
    "find",  "here",  "thing", "many",   "tell",   "very",   "hand",  "high", "life",  "part",
    "place", "case",  "week",  "point",  "home",   "water",  "room",  "area", "money", "story",
    "fact",  "month", "lot",   "right",  "study",  "book",   "eye",   "job",  "word",  "side",
    "kind",  "head",  "house", "friend", "father", "power",  "hour",  "game", "line",  "end",
    "city",  "name",  "team",  "minute", "idea",   "kid",    "body",  "face", "door",  "car",
    "dog",   "tree",  "road",  "river",  "window", "garden", "light", "stone"};

constexpr std::uint64_t kPromptStream = 4;
constexpr std::uint64_t kBlockStream = 5;

// Divides a prompt of `total` words or ids into its prefix blocks and the rest, and calls
// append(count, seed) for each: every block has a seed by its id, the rest one by the request.
template <class Append>
void for_each_run(const PlannedRequest& planned, std::int64_t total, double unit_per_token,
                  std::uint64_t seed, const Append& append) {
  std::int64_t done = 0;
  double end = 0;
  for (const std::int64_t block : planned.prefix_blocks) {
    end += planned.block_tokens * unit_per_token;
    const std::int64_t until = std::min(total, static_cast<std::int64_t>(std::llround(end)));
    if (until > done) {
      append(until - done,
             mix_seeds(mix_seeds(seed, kBlockStream), static_cast<std::uint64_t>(block)));
      done = until;
    }
  }
  if (total > done) {
    append(total - done,
           mix_seeds(mix_seeds(seed, kPromptStream), static_cast<std::uint64_t>(planned.index)));
  }
}

}  // namespace

Result<TokenIdRange> parse_token_ids(std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const auto first = parse_number(text.substr(0, colon)).value_or(-1);
  const auto last = parse_number(text.substr(std::min(colon + 1, text.size()))).value_or(-1);
  if (first < 0 || last < first || last > 1e9 || first != std::floor(first) ||
      last != std::floor(last)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--token-ids {} must be FIRST:LAST, like 300:2000", quoted_for_error(text));
  }
  return TokenIdRange{static_cast<std::int64_t>(first), static_cast<std::int64_t>(last)};
}

Result<std::vector<DatasetPrompt>> parse_dataset(std::string_view lines, std::string_view name) {
  std::vector<DatasetPrompt> prompts;
  const Status read =
      for_each_line(lines, name, [&](std::string_view line, const TracePlace& place) -> Status {
        boost::system::error_code failed;
        const boost::json::value value = boost::json::parse({line.data(), line.size()}, failed);
        const auto* object = value.if_object();
        const auto* prompt = object != nullptr ? object->if_contains("prompt") : nullptr;
        if (failed || prompt == nullptr || !prompt->is_string()) {
          return trace_error(place, "{} is not a JSON object with a string \"prompt\"",
                             quoted_for_error(line));
        }
        DatasetPrompt found{.prompt = std::string(prompt->get_string())};
        if (const auto* output = object->if_contains("output_tokens")) {
          const auto tokens = output->is_int64() ? output->get_int64() : 0;
          if (tokens < 1 || tokens > kMaxTraceTokens) {
            return trace_error(place, "\"output_tokens\" must be a whole number above 0");
          }
          found.output_tokens = tokens;
        }
        prompts.push_back(std::move(found));
        return {};
      });
  if (!read.ok()) {
    return read.error();
  }
  if (prompts.empty()) {
    return make_error(ErrorCode::kCorrupt, "{}: the dataset has no prompts", name);
  }
  return prompts;
}

PromptWriter::PromptWriter(PromptSource source, std::uint64_t seed)
    : source_(std::move(source)), seed_(seed) {
  std::string_view rest = source_.text;
  static constexpr std::string_view kSpace = " \t\r\n";
  while (true) {
    const std::size_t first = rest.find_first_not_of(kSpace);
    if (first == std::string_view::npos) {
      break;
    }
    rest.remove_prefix(first);
    words_.push_back(rest.substr(0, rest.find_first_of(kSpace)));
    rest.remove_prefix(words_.back().size());
  }
}

const DatasetPrompt* PromptWriter::dataset_prompt(const PlannedRequest& planned) const {
  if (source_.dataset.empty() || planned.index < 0) {
    return nullptr;
  }
  return &source_.dataset[static_cast<std::size_t>(planned.index) % source_.dataset.size()];
}

std::string PromptWriter::text(const PlannedRequest& planned) const {
  if (const DatasetPrompt* line = dataset_prompt(planned)) {
    return line->prompt;
  }
  const double wanted = static_cast<double>(planned.input_tokens) - calibration_.overhead_tokens;
  const auto count = std::max<std::int64_t>(1, std::llround(wanted / calibration_.tokens_per_word));
  std::string text;
  for_each_run(planned, count, 1 / calibration_.tokens_per_word, seed_,
               [&](std::int64_t run, std::uint64_t stream) { append_words(run, stream, text); });
  return text;
}

std::vector<std::int64_t> PromptWriter::token_ids(const PlannedRequest& planned) const {
  std::vector<std::int64_t> ids;
  ids.reserve(static_cast<std::size_t>(planned.input_tokens));
  for_each_run(planned, planned.input_tokens, 1, seed_,
               [&](std::int64_t run, std::uint64_t stream) {
                 Random random(stream);
                 for (std::int64_t i = 0; i < run; ++i) {
                   ids.push_back(random.integer(source_.token_ids->first, source_.token_ids->last));
                 }
               });
  return ids;
}

std::string PromptWriter::probe_text(const ProbeWords& words) const {
  // The built-in list begins with its most common words, which have the fewest tokens.
  constexpr std::size_t kStride = 45;
  std::string text;
  for (int time = 0; time < words.times; ++time) {
    for (std::int64_t word = words.first; word < words.first + words.count; ++word) {
      const auto i = static_cast<std::size_t>(word);
      text += text.empty() ? "" : " ";
      text += words_.empty() ? kWords[i * kStride % kWords.size()] : words_[i % words_.size()];
    }
  }
  return text;
}

// Appends words of the source's text from a random place on, or random words of the built-in list.
void PromptWriter::append_words(std::int64_t count, std::uint64_t stream, std::string& text) const {
  Random random(stream);
  const bool built_in = words_.empty();
  const auto size = static_cast<std::int64_t>(built_in ? kWords.size() : words_.size());
  std::int64_t place = random.integer(0, size - 1);
  for (std::int64_t i = 0; i < count; ++i) {
    if (!text.empty()) {
      text += ' ';
    }
    text += built_in ? kWords[static_cast<std::size_t>(place)]
                     : words_[static_cast<std::size_t>(place)];
    place = built_in ? random.integer(0, size - 1) : (place + 1) % size;
  }
}

}  // namespace protean::loadtest
