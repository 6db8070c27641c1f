#include "tokenizer/hf_components.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "tokenizer/base64.h"
#include "tokenizer/known_pre_tokenizers.h"

namespace protean {
namespace {

namespace json = boost::json;

void unsupported(const Fields& part, std::string_view what) {
  part.complaint().add(ErrorCode::kUnsupported, "{} '{}' is not supported", part.where(), what);
}

std::optional<Regex> compile(Result<Regex> compiled, const Fields& part) {
  if (!compiled) {
    part.complaint().add(compiled.error().code, "{}: {}", part.where(), compiled.error().message);
    return std::nullopt;
  }
  return std::move(*compiled);
}

struct Pattern {
  std::string_view text;
  bool is_regex = false;
};

// {"String": "..."} or {"Regex": "..."}
Pattern read_pattern(const Fields& part) {
  const json::value* value = part.find("pattern");
  if (value == nullptr) {
    part.complaint().add(ErrorCode::kCorrupt, "{} has no 'pattern'", part.where());
    return {};
  }
  const Fields pattern = Fields::of(*value, "'pattern' of " + part.where(), part.complaint());
  const bool is_regex = pattern.find("Regex") != nullptr;
  const Pattern found{pattern.required_text(is_regex ? "Regex" : "String"), is_regex};
  if (found.text.empty()) {
    part.complaint().add(ErrorCode::kCorrupt, "{} has an empty pattern", part.where());
  }
  return found;
}

std::optional<Regex> read_regex(const Fields& part) {
  const Pattern pattern = read_pattern(part);
  return compile(pattern.is_regex ? Regex::compile(pattern.text) : Regex::literal(pattern.text),
                 part);
}

// Real components write a space as three bytes. Without a bound, a hostile file could make a prompt
// use up the memory.
constexpr double kLargestGrowth = 64;

void check_growth(double growth, std::string_view where, Complaint& complaint) {
  if (growth > kLargestGrowth) {
    complaint.add(ErrorCode::kUnsupported, "{} can make a text more than {} times longer", where,
                  kLargestGrowth);
  }
}

// Normalizers --------------------------------------------------------------------------------

void add_strip(const Fields& part, Normalizer& normalizer) {
  const std::pair<const char*, const char*> sides[] = {{"strip_left", R"(\A\s+)"},
                                                       {"strip_right", R"(\s+\z)"}};
  for (const auto& [key, pattern] : sides) {
    if (part.boolean(key, true)) {
      if (auto regex = compile(Regex::compile(pattern), part)) {
        normalizer.add(Normalizer::ReplaceMatches{std::move(*regex), ""});
      }
    }
  }
}

void add_replace(const Fields& part, Normalizer& normalizer) {
  const Pattern pattern = read_pattern(part);
  const std::string to(part.text("content", ""));
  if (pattern.text.empty()) {
    return;
  }
  if (!pattern.is_regex) {
    normalizer.add(Normalizer::Replace{std::string(pattern.text), to});
  } else if (auto regex = compile(Regex::compile(pattern.text), part)) {
    normalizer.add(Normalizer::ReplaceMatches{std::move(*regex), to});
  }
}

void add_charsmap(const Fields& part, Normalizer& normalizer) {
  const std::optional<std::string> bytes = from_base64(part.text("precompiled_charsmap", ""));
  if (bytes && bytes->empty()) {
    return;  // replaces nothing
  }
  Result<Charsmap> map = Charsmap::read(bytes.value_or(""));
  if (!map) {
    part.complaint().add(map.error().code, "{}: {}", part.where(), map.error().message);
    return;
  }
  normalizer.add(Normalizer::Characters{std::move(*map), Normalizer::Match::kClusters});
}

void add_normalizer(const json::value& value, Normalizer& normalizer, Complaint& complaint) {
  using Unicode = Normalizer::Unicode;
  constexpr std::pair<std::string_view, Unicode> kForms[] = {{"NFC", Unicode::kNfc},
                                                             {"NFD", Unicode::kNfd},
                                                             {"NFKC", Unicode::kNfkc},
                                                             {"NFKD", Unicode::kNfkd},
                                                             {"Lowercase", Unicode::kLowercase}};
  const Fields part = Fields::of(value, "normalizer", complaint);
  const std::string_view type = part.required_text("type");
  for (const auto& [name, form] : kForms) {
    if (type == name) {
      normalizer.add(form);
      return;
    }
  }
  if (type == "Sequence") {
    for (const json::value& inner : part.array("normalizers")) {
      add_normalizer(inner, normalizer, complaint);
    }
  } else if (type == "Prepend") {
    const std::string_view text = part.text("prepend", "");
    check_growth(static_cast<double>(text.size()), "normalizer 'Prepend'", complaint);
    normalizer.add(Normalizer::Prepend{std::string(text)});
  } else if (type == "Replace") {
    add_replace(part, normalizer);
  } else if (type == "Strip") {
    add_strip(part, normalizer);
  } else if (type == "Precompiled") {
    add_charsmap(part, normalizer);
  } else {
    unsupported(part, type);
  }
}

// Pre-tokenizers -----------------------------------------------------------------------------

PreTokenizer::Behavior read_behavior(const Fields& part, std::string_view fallback) {
  using Behavior = PreTokenizer::Behavior;
  constexpr std::pair<std::string_view, Behavior> kBehaviors[] = {
      {"Isolated", Behavior::kIsolated},
      {"Removed", Behavior::kRemoved},
      {"Contiguous", Behavior::kContiguous},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext}};
  const std::string_view name = part.text("behavior", fallback);
  for (const auto& [known, behavior] : kBehaviors) {
    if (name == known) {
      return behavior;
    }
  }
  part.complaint().add(ErrorCode::kUnsupported, "{} behavior '{}' is not supported", part.where(),
                       name);
  return Behavior::kIsolated;
}

void add_split(std::optional<Regex> pattern, PreTokenizer::Behavior behavior, bool invert,
               PreTokenizer& out) {
  if (pattern) {
    out.add(PreTokenizer::Split{std::move(*pattern), behavior, invert});
  }
}

void add_metaspace(const Fields& part, PreTokenizer& out) {
  using Prepend = PreTokenizer::Metaspace::Prepend;
  PreTokenizer::Metaspace step;
  step.replacement = part.text("replacement", "\xE2\x96\x81");
  const bool prefix = part.boolean("add_prefix_space", true);  // older files have no prepend_scheme
  const std::string_view scheme = part.text("prepend_scheme", prefix ? "always" : "never");
  if (scheme == "first") {
    step.prepend = Prepend::kFirst;
  } else if (scheme == "never") {
    step.prepend = Prepend::kNever;
  } else if (scheme != "always") {
    unsupported(part, "Metaspace with prepend_scheme " + std::string(scheme));
  }
  if (step.replacement.empty()) {
    part.complaint().add(ErrorCode::kCorrupt, "{} Metaspace has no replacement", part.where());
    return;
  }
  check_growth(static_cast<double>(step.replacement.size()), "pre_tokenizer 'Metaspace'",
               part.complaint());
  const std::string replacement = step.replacement;
  out.add(std::move(step));
  if (part.boolean("split", true)) {
    add_split(compile(Regex::literal(replacement), part), PreTokenizer::Behavior::kMergedWithNext,
              false, out);
  }
}

// Adds a type that is a fixed pattern. Returns false for other types.
bool add_fixed(std::string_view type, const Fields& part, PreTokenizer& out) {
  using Behavior = PreTokenizer::Behavior;
  const auto add = [&](const char* pattern, Behavior behavior, bool invert) {
    add_split(compile(Regex::compile(pattern), part), behavior, invert, out);
    return true;
  };
  if (type == "Digits") {
    const bool each = part.boolean("individual_digits", false);
    return add(R"(\p{N})", each ? Behavior::kIsolated : Behavior::kContiguous, false);
  }
  if (type == "Punctuation") {
    return add(R"([\p{P}$+<=>^`|~])", read_behavior(part, "Isolated"), false);
  }
  if (type == "WhitespaceSplit") {
    return add(R"(\s)", Behavior::kRemoved, false);
  }
  if (type == "Whitespace") {
    return add(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}]+|[^\s\p{Alphabetic}\p{M}\p{Nd}\p{Pc}]+)",
               Behavior::kRemoved, true);
  }
  return false;
}

void add_pre_tokenizer(const json::value& value, HfPreTokenizer& out, Complaint& complaint) {
  const Fields part = Fields::of(value, "pre_tokenizer", complaint);
  const std::string_view type = part.required_text("type");
  if (out.byte_level) {
    unsupported(part, std::string(type) + " after ByteLevel");
  } else if (type == "Sequence") {
    for (const json::value& inner : part.array("pretokenizers")) {
      add_pre_tokenizer(inner, out, complaint);
    }
  } else if (type == "ByteLevel") {
    out.byte_level = true;
    if (part.boolean("add_prefix_space", true)) {
      out.pre_tokenizer.add(PreTokenizer::PrefixSpace{});
    }
    if (part.boolean("use_regex", true)) {
      add_split(compile(Regex::compile(kGpt2Words), part), PreTokenizer::Behavior::kIsolated, false,
                out.pre_tokenizer);
    }
  } else if (type == "Split") {
    add_split(read_regex(part), read_behavior(part, ""), part.boolean("invert", false),
              out.pre_tokenizer);
  } else if (type == "Metaspace") {
    add_metaspace(part, out.pre_tokenizer);
  } else if (!add_fixed(type, part, out.pre_tokenizer)) {
    unsupported(part, type);
  }
}

// Decoders -----------------------------------------------------------------------------------

void add_replacement(std::string_view from, std::string_view to, HfDecoder& out) {
  if (!from.empty()) {  // if empty, the file was complained about
    out.replacements.add(Normalizer::Replace{std::string(from), std::string(to)});
  }
}

void add_decoder(const json::value& value, HfDecoder& out, Complaint& complaint) {
  const Fields part = Fields::of(value, "decoder", complaint);
  const std::string_view type = part.required_text("type");
  if (type == "Sequence") {
    for (const json::value& inner : part.array("decoders")) {
      add_decoder(inner, out, complaint);
    }
  } else if (type == "ByteLevel") {
    out.byte_level = true;
  } else if (type == "ByteFallback") {
    out.byte_fallback = true;
  } else if (type == "Fuse") {
    return;  // joins tokens, as decoding always does
  } else if (type == "Replace") {
    const Pattern pattern = read_pattern(part);
    if (pattern.is_regex) {
      unsupported(part, "Replace with a Regex");
    }
    add_replacement(pattern.text, part.text("content", ""), out);
  } else if (type == "Metaspace") {
    const std::string_view replacement = part.text("replacement", "\xE2\x96\x81");
    if (replacement.empty()) {
      complaint.add(ErrorCode::kCorrupt, "decoder Metaspace has no replacement");
    }
    add_replacement(replacement, " ", out);
    out.strips_leading_space =
        part.boolean("add_prefix_space", true) && part.text("prepend_scheme", "always") != "never";
  } else if (type == "Strip") {
    const bool one_space_in_front = part.text("content", " ") == " " &&
                                    part.integer("start", 0) == 1 && part.integer("stop", 0) == 0;
    if (!one_space_in_front) {
      unsupported(part, "Strip of anything but one space in front");
    }
    out.strips_leading_space = true;
  } else {
    unsupported(part, type);
  }
}

// Post-processors ----------------------------------------------------------------------------

void add_template_token(const json::value& item, const Fields& part, std::vector<TokenId>& out) {
  Complaint& complaint = part.complaint();
  const Fields token = Fields::of(item, "a special token of " + part.where(), complaint);
  const std::string_view name = token.required_text("id");
  const json::value* table = part.find("special_tokens");
  const Fields tokens = table == nullptr ? token : Fields::of(*table, part.where(), complaint);
  const json::value* entry = table == nullptr ? nullptr : tokens.find(name);
  if (entry == nullptr) {
    complaint.add(ErrorCode::kCorrupt, "{} uses '{}', which its special_tokens lack", part.where(),
                  name);
    return;
  }
  for (const json::value& id : Fields::of(*entry, part.where(), complaint).array("ids")) {
    const std::int64_t* number = id.if_int64();
    if (number == nullptr || *number < 0 || *number > INT32_MAX) {
      complaint.add(ErrorCode::kCorrupt, "{} has an id that is no token id", part.where());
      return;
    }
    out.push_back(static_cast<TokenId>(*number));
  }
}

HfFrame read_template(const Fields& part) {
  HfFrame frame;
  bool behind = false;
  for (const json::value& item : part.array("single")) {
    const Fields fields = Fields::of(item, "an item of " + part.where(), part.complaint());
    if (const json::value* token = fields.find("SpecialToken")) {
      add_template_token(*token, part, behind ? frame.suffix : frame.prefix);
    } else if (fields.find("Sequence") != nullptr && !behind) {
      behind = true;
    } else {
      unsupported(part, "TemplateProcessing with other items than tokens and one sequence");
    }
  }
  if (!behind) {
    part.complaint().add(ErrorCode::kCorrupt, "{} has no place for the text", part.where());
  }
  return frame;
}

}  // namespace

Normalizer read_normalizer(const json::value* value, Complaint& complaint) {
  Normalizer normalizer;
  if (value != nullptr) {
    add_normalizer(*value, normalizer, complaint);
  }
  check_growth(normalizer.growth(), "normalizer", complaint);
  return normalizer;
}

HfPreTokenizer read_pre_tokenizer(const json::value* value, Complaint& complaint) {
  HfPreTokenizer out;
  if (value != nullptr) {
    add_pre_tokenizer(*value, out, complaint);
  }
  return out;
}

HfDecoder read_decoder(const json::value* value, Complaint& complaint) {
  HfDecoder out;
  if (value != nullptr) {
    add_decoder(*value, out, complaint);
  }
  check_growth(out.replacements.growth(), "decoder", complaint);
  return out;
}

std::optional<HfFrame> read_post_processor(const json::value* value, Complaint& complaint) {
  if (value == nullptr) {
    return std::nullopt;
  }
  const Fields part = Fields::of(*value, "post_processor", complaint);
  const std::string_view type = part.required_text("type");
  if (type == "TemplateProcessing") {
    return read_template(part);
  }
  if (type == "Sequence") {
    std::optional<HfFrame> frame;
    for (const json::value& inner : part.array("processors")) {
      if (std::optional<HfFrame> found = read_post_processor(&inner, complaint)) {
        if (frame) {
          unsupported(part, "Sequence of several TemplateProcessing");
        }
        frame = std::move(found);
      }
    }
    return frame;
  }
  if (type != "ByteLevel") {  // ByteLevel only moves offsets
    unsupported(part, type);
  }
  return std::nullopt;
}

}  // namespace protean
