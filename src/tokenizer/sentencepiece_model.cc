#include "tokenizer/sentencepiece_model.h"

#include <bit>
#include <cstdint>
#include <optional>
#include <utility>

namespace protean {
namespace {

// One field of a protocol buffer message. The wire type says which of the values is set.
struct Field {
  std::uint32_t number = 0;
  std::uint64_t integer = 0;
  std::string_view bytes;
  float real = 0;
};

// Reads the fields of one message. The library for this format declares the model type and the
// normalizer in a header that Debian does not ship.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  // Returns false at the end and for a broken message; then broken() is true.
  bool next(Field& field) {
    if (rest_.empty() || broken_) {
      return false;
    }
    field = {};
    const std::uint64_t tag = varint();
    field.number = static_cast<std::uint32_t>(tag >> 3);
    switch (tag & 7) {
      case 0:
        field.integer = varint();
        break;
      case 1:
        take(8);
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5: {
        const std::string_view raw = take(4);
        std::uint32_t bits = 0;
        for (std::size_t i = raw.size(); i-- > 0;) {
          bits = (bits << 8) | static_cast<unsigned char>(raw[i]);
        }
        field.real = std::bit_cast<float>(bits);
        break;
      }
      default:
        broken_ = true;
    }
    return !broken_;
  }
  bool broken() const { return broken_; }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) {
        break;
      }
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) {
        return value;
      }
    }
    broken_ = true;
    return 0;
  }

  std::string_view take(std::uint64_t length) {
    if (length > rest_.size()) {
      broken_ = true;
      return {};
    }
    const std::string_view taken = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return taken;
  }

  std::string_view rest_;
  bool broken_ = false;
};

Error broken_file(std::string_view part) {
  return make_error(ErrorCode::kCorrupt,
                    "not a SentencePiece model, or a truncated one: its {} cannot be read", part);
}

Status add_piece(std::string_view bytes, Vocabulary& vocabulary) {
  std::string text;
  float score = 0;
  std::uint64_t type = 1;
  Message message(bytes);
  for (Field field; message.next(field);) {
    if (field.number == 1) {
      text = field.bytes;
    } else if (field.number == 2) {
      score = field.real;
    } else if (field.number == 3) {
      type = field.integer;
    }
  }
  if (message.broken() || type < 1 || type > 6) {
    return broken_file("vocabulary");
  }
  vocabulary.tokens.push_back(std::move(text));
  vocabulary.scores.push_back(score);
  vocabulary.types.push_back(static_cast<Vocabulary::Type>(type));
  return {};
}

Status read_trainer(std::string_view bytes, Vocabulary& vocabulary) {
  constexpr const char* kModelTypes[] = {"?", "unigram", "BPE", "word", "char"};
  std::uint64_t model_type = 1;
  bool spaces_behind = false;
  Message message(bytes);
  for (Field field; message.next(field);) {
    switch (field.number) {
      case 3:
        model_type = field.integer;
        break;
      case 24:
        spaces_behind = field.integer != 0;
        break;
      case 40:
        vocabulary.unknown = static_cast<TokenId>(field.integer);
        break;
      case 41:
        vocabulary.bos = static_cast<TokenId>(field.integer);
        break;
      case 42:
        vocabulary.eos = static_cast<TokenId>(field.integer);
        break;
      default:
        break;
    }
  }
  if (message.broken()) {
    return broken_file("trainer settings");
  }
  vocabulary.kind = model_type == 1 ? Vocabulary::Kind::kUnigram : Vocabulary::Kind::kSentencePiece;
  if (model_type != 1 && model_type != 2) {
    return make_error(ErrorCode::kUnsupported,
                      "SentencePiece model type '{}' (only BPE and unigram are)",
                      kModelTypes[model_type < 5 ? model_type : 0]);
  }
  if (spaces_behind) {
    return make_error(ErrorCode::kUnsupported, "SentencePiece with white space as suffix");
  }
  return {};
}

Status read_normalizer(std::string_view bytes, Vocabulary& vocabulary) {
  std::string_view name;
  bool escapes_spaces = true;
  vocabulary.squeeze_spaces = true;  // the format's default
  Message message(bytes);
  for (Field field; message.next(field);) {
    switch (field.number) {
      case 1:
        name = field.bytes;
        break;
      case 2:
        vocabulary.charsmap = field.bytes;
        break;
      case 3:
        vocabulary.add_space_prefix = field.integer != 0;
        break;
      case 4:
        vocabulary.squeeze_spaces = field.integer != 0;
        break;
      case 5:
        escapes_spaces = field.integer != 0;
        break;
      default:
        break;
    }
  }
  if (message.broken()) {
    return broken_file("normalizer settings");
  }
  if (!escapes_spaces) {
    return make_error(ErrorCode::kUnsupported,
                      "SentencePiece normalizer '{}' without escaped white space", name);
  }
  return {};
}

}  // namespace

Result<Vocabulary> read_sentencepiece_model(std::string_view bytes) {
  Vocabulary vocabulary;
  vocabulary.unknown = 0;  // the format's defaults
  vocabulary.bos = 1;
  vocabulary.eos = 2;
  bool has_trainer = false;
  Message message(bytes);
  for (Field field; message.next(field);) {
    Status part;
    if (field.number == 1) {
      part = add_piece(field.bytes, vocabulary);
    } else if (field.number == 2) {
      has_trainer = true;
      part = read_trainer(field.bytes, vocabulary);
    } else if (field.number == 3) {
      part = read_normalizer(field.bytes, vocabulary);
    }
    if (!part) {
      return part.error();
    }
  }
  if (message.broken() || !has_trainer || vocabulary.tokens.empty()) {
    return broken_file(message.broken() ? "end" : "vocabulary");
  }
  vocabulary.add_bos = vocabulary.bos >= 0;
  return vocabulary;
}

}  // namespace protean
