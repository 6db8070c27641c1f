#include "tokenizer/vocabulary_files.h"

#include <algorithm>
#include <bit>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cstdint>
#include <string_view>

#include "tokenizer/known_pre_tokenizers.h"

namespace protean {
namespace {

namespace json = boost::json;
using Type = Vocabulary::Type;

// Writes one protocol buffer message.
class MessageWriter {
 public:
  void integer(std::uint32_t number, std::uint64_t value) {
    varint(number << 3);
    varint(value);
  }
  void text(std::uint32_t number, std::string_view value) {
    varint(number << 3 | 2);
    varint(value.size());
    bytes_ += value;
  }
  void real(std::uint32_t number, float value) {
    varint(number << 3 | 5);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) {
      bytes_ += static_cast<char>((bits >> shift) & 0xFF);
    }
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
      bytes_ += static_cast<char>((value & 0x7F) | 0x80);
    }
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// Field numbers are those of sentencepiece_model.proto. -1 is written as protocol buffers do.
std::string sentencepiece_model(const Vocabulary& vocabulary) {
  constexpr std::uint64_t kBpe = 2;
  MessageWriter model;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    MessageWriter piece;
    piece.text(1, vocabulary.tokens[id]);
    piece.real(2, vocabulary.scores[id]);
    piece.integer(3, static_cast<std::uint64_t>(vocabulary.types[id]));
    model.text(1, piece.bytes());
  }
  const auto id = [](TokenId token) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(token));
  };
  MessageWriter trainer;
  trainer.integer(3, kBpe);
  trainer.integer(4, vocabulary.tokens.size());
  // The SentencePiece library refuses byte tokens in a model that does not set byte_fallback.
  const auto& types = vocabulary.types;
  const bool byte_fallback = std::find(types.begin(), types.end(), Type::kByte) != types.end();
  trainer.integer(35, byte_fallback ? 1 : 0);
  trainer.integer(40, id(vocabulary.unknown));
  trainer.integer(41, id(vocabulary.bos));
  trainer.integer(42, id(vocabulary.eos));
  model.text(2, trainer.bytes());
  MessageWriter normalizer;
  normalizer.text(1, "identity");
  normalizer.integer(3, vocabulary.add_space_prefix ? 1 : 0);
  normalizer.integer(4, 0);  // white space is kept as it is
  normalizer.integer(5, 1);  // spaces are written as U+2581
  model.text(3, normalizer.bytes());
  return model.bytes();
}

json::object pre_tokenizer_of(const PreTokenizerPatterns& known) {
  json::array parts;
  for (const std::string_view pattern : known.patterns) {
    parts.push_back(json::object{{"type", "Split"},
                                 {"pattern", json::object{{"Regex", pattern}}},
                                 {"behavior", "Isolated"},
                                 {"invert", false}});
  }
  parts.push_back(json::object{{"type", "ByteLevel"},
                               {"add_prefix_space", false},
                               {"trim_offsets", true},
                               {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", std::move(parts)}};
}

// Puts BOS and EOS around a text if the vocabulary asks for them.
json::value post_processor_of(const Vocabulary& vocabulary) {
  if (!vocabulary.add_bos && !vocabulary.add_eos) {
    return nullptr;
  }
  json::array single;
  json::object specials;
  const auto add = [&](TokenId id) {
    const std::string& name = vocabulary.tokens[static_cast<std::size_t>(id)];
    single.push_back(json::object{{"SpecialToken", json::object{{"id", name}, {"type_id", 0}}}});
    specials[name] =
        json::object{{"id", name}, {"ids", json::array{id}}, {"tokens", json::array{name}}};
  };
  if (vocabulary.add_bos) {
    add(vocabulary.bos);
  }
  single.push_back(json::object{{"Sequence", json::object{{"id", "A"}, {"type_id", 0}}}});
  if (vocabulary.add_eos) {
    add(vocabulary.eos);
  }
  return json::object{{"type", "TemplateProcessing"},
                      {"single", single},
                      {"pair", single},
                      {"special_tokens", std::move(specials)}};
}

Result<std::string> tokenizer_json(const Vocabulary& vocabulary) {
  const auto known = known_patterns(vocabulary.pre_tokenizer);
  if (!known.ok()) {
    return known.error();
  }
  json::object tokens;
  json::array added;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& text = vocabulary.tokens[id];
    const Type type = vocabulary.types[id];
    // Added tokens are in the model too: the Hugging Face library ignores the id of an added token
    // that the model lacks, and numbers such tokens from the model's size on.
    tokens[text] = id;
    if (type == Type::kNormal || type == Type::kByte) {
      continue;
    }
    added.push_back(json::object{{"id", id},
                                 {"content", text},
                                 {"special", type != Type::kUserDefined},
                                 {"single_word", false},
                                 {"lstrip", false},
                                 {"rstrip", false},
                                 {"normalized", false}});
  }
  const json::object decoder{{"type", "ByteLevel"},
                             {"add_prefix_space", false},
                             {"trim_offsets", true},
                             {"use_regex", false}};
  json::object model{{"type", "BPE"},
                     {"ignore_merges", known->whole_pieces_first},
                     {"vocab", std::move(tokens)},
                     {"merges", json::array(vocabulary.merges.begin(), vocabulary.merges.end())}};
  const json::value normalizer =
      known->nfc ? json::value(json::object{{"type", "NFC"}}) : json::value(nullptr);
  return json::serialize(json::object{{"version", "1.0"},
                                      {"added_tokens", std::move(added)},
                                      {"normalizer", normalizer},
                                      {"pre_tokenizer", pre_tokenizer_of(*known)},
                                      {"post_processor", post_processor_of(vocabulary)},
                                      {"decoder", decoder},
                                      {"model", std::move(model)}}) +
         "\n";
}

}  // namespace

Result<std::map<std::string, std::string>> vocabulary_files(const Vocabulary& vocabulary,
                                                            const std::string& chat_template) {
  const bool sentencepiece = vocabulary.kind == Vocabulary::Kind::kSentencePiece;
  std::map<std::string, std::string> files;
  if (sentencepiece) {
    files["tokenizer.model"] = sentencepiece_model(vocabulary);
  } else {
    auto text = tokenizer_json(vocabulary);
    if (!text.ok()) {
      return text.error();
    }
    files["tokenizer.json"] = *std::move(text);
  }
  json::object config{
      {"tokenizer_class", sentencepiece ? "LlamaTokenizer" : "PreTrainedTokenizerFast"},
      {"add_bos_token", vocabulary.add_bos},
      {"add_eos_token", vocabulary.add_eos},
      {"clean_up_tokenization_spaces", false}};
  const std::pair<const char*, TokenId> names[] = {{"bos_token", vocabulary.bos},
                                                   {"eos_token", vocabulary.eos},
                                                   {"unk_token", vocabulary.unknown}};
  for (const auto& [name, id] : names) {
    if (id >= 0) {
      config[name] = vocabulary.tokens[static_cast<std::size_t>(id)];
    }
  }
  if (!chat_template.empty()) {
    config["chat_template"] = chat_template;
  }
  files["tokenizer_config.json"] = json::serialize(config) + "\n";
  return files;
}

}  // namespace protean
