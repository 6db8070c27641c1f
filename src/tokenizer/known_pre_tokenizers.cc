#include "tokenizer/known_pre_tokenizers.h"

#include <array>
#include <span>
#include <utility>

namespace protean {
namespace {

using Patterns = std::array<std::string_view, 4>;  // applied one after the other; empty: none

struct Family {
  std::span<const std::string_view> names;
  Patterns patterns;
  bool nfc = false;
  bool whole_pieces_first = false;
};

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kQwen2 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
                                    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Splits words between lower and upper case.
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kDeepSeekV3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kGpt2Names[] = {
    "gpt-2",    "gpt2",   "default", "phi-2",   "mpt",      "olmo",           "jais",
    "trillion", "mellum", "a.x-4.0", "exaone4", "gigachat", "granite-docling"};
constexpr std::string_view kLlama3Names[] = {"llama-bpe", "llama3",  "llama-v3", "falcon3",
                                             "falcon-h1", "pixtral", "midm-2.0", "lfm2"};
constexpr std::string_view kDbrxNames[] = {"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"};
constexpr std::string_view kQwen2Names[] = {"qwen2", "deepseek-r1-qwen", "megrez", "kormo"};
constexpr std::string_view kStableLmNames[] = {"stablelm2", "hunyuan", "grok-2"};
constexpr std::string_view kStarCoderNames[] = {"starcoder", "smollm",     "refact", "command-r",
                                                "codeshell", "minerva-7b", "exaone"};
constexpr std::string_view kTekkenNames[] = {"tekken"};
constexpr std::string_view kGpt4oNames[] = {"gpt-4o", "llama4", "minimax-m2"};
constexpr std::string_view kDeepSeekV3Names[] = {"deepseek-v3", "hunyuan-dense"};

constexpr Family kFamilies[] = {
    {.names = kGpt2Names, .patterns = {kGpt2}},
    {.names = kLlama3Names, .patterns = {kLlama3}, .whole_pieces_first = true},
    {.names = kDbrxNames, .patterns = {kLlama3}},
    {.names = kQwen2Names, .patterns = {kQwen2}, .nfc = true},
    {.names = kStableLmNames, .patterns = {kQwen2}},
    {.names = kStarCoderNames, .patterns = {R"(\p{N})", kGpt2}},
    {.names = kTekkenNames, .patterns = {kTekken}, .whole_pieces_first = true},
    {.names = kGpt4oNames, .patterns = {kGpt4o}},
    {.names = kDeepSeekV3Names,
     .patterns = {R"(\p{N}{1,3})", R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
                  kDeepSeekV3}},
};

const Family* find_family(std::string_view name) {
  for (const Family& family : kFamilies) {
    for (const std::string_view known : family.names) {
      if (known == name) {
        return &family;
      }
    }
  }
  return nullptr;
}

}  // namespace

const std::string_view kGpt2Words = kGpt2;

Result<PreTokenizerPatterns> known_patterns(std::string_view name) {
  const Family* family = find_family(name);
  if (family == nullptr) {
    return make_error(ErrorCode::kUnsupported, "pre-tokenizer '{}' is not supported", name);
  }
  PreTokenizerPatterns known{.nfc = family->nfc, .whole_pieces_first = family->whole_pieces_first};
  for (const std::string_view pattern : family->patterns) {
    if (!pattern.empty()) {
      known.patterns.push_back(pattern);
    }
  }
  return known;
}

Result<KnownPreTokenizer> known_pre_tokenizer(std::string_view name) {
  const auto family = known_patterns(name);
  if (!family.ok()) {
    return family.error();
  }
  KnownPreTokenizer known;
  known.whole_pieces_first = family->whole_pieces_first;
  if (family->nfc) {
    known.normalizer.add(Normalizer::Unicode::kNfc);
  }
  for (const std::string_view pattern : family->patterns) {
    Result<Regex> regex = Regex::compile(pattern);
    if (!regex) {
      return regex.error();
    }
    known.pre_tokenizer.add(PreTokenizer::Split{.pattern = std::move(*regex)});
  }
  return known;
}

}  // namespace protean
