#include "tokenizer/hf_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "tokenizer/bpe_rules.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/hf_components.h"
#include "tokenizer/pipeline.h"

namespace protean {
namespace {

namespace json = boost::json;

// Real vocabularies have few holes. A wrong id must not make us allocate millions of tokens.
std::int64_t largest_id(std::size_t tokens) {
  return std::min<std::int64_t>(kLargestVocabulary - 1,
                                2 * static_cast<std::int64_t>(tokens) + 65536);
}

// Turns one tokenizer.json into a Pipeline.
class Reader {
 public:
  Reader(const Fields& root, Complaint& complaint) : root_(root), complaint_(complaint) {}

  Pipeline read() {
    read_model();
    pipeline_.normalizer = read_normalizer(root_.find("normalizer"), complaint_);
    HfPreTokenizer pre = read_pre_tokenizer(root_.find("pre_tokenizer"), complaint_);
    pipeline_.pre_tokenizer = std::move(pre.pre_tokenizer);
    byte_level_ = pre.byte_level;
    pipeline_.model.byte_symbols = byte_level_;
    read_added_tokens();
    const HfDecoder decoder = read_decoder(root_.find("decoder"), complaint_);
    if (!complaint_.any()) {
      read_tokens_bytes(decoder);
      pipeline_.unigram ? fill_unigram() : fill_model();
    }
    read_frame();
    pipeline_.description = pipeline_.unigram ? "Unigram (tokenizer.json)"
                            : byte_level_     ? "byte-level BPE (tokenizer.json)"
                            : byte_fallback_  ? "BPE with byte fallback (tokenizer.json)"
                                              : "BPE (tokenizer.json)";
    return std::move(pipeline_);
  }

  bool has_frame() const { return has_frame_; }

 private:
  void read_model();
  void read_merges(const Fields& model);
  void read_unigram(const Fields& model);
  void fill_unigram();
  void read_added_tokens();
  void add_token(AddedToken token);
  void read_tokens_bytes(const HfDecoder& decoder);
  void fill_model();
  void fill_byte_tokens();
  void read_frame();

  Fields root_;
  Complaint& complaint_;
  Pipeline pipeline_;
  std::vector<std::string> texts_;  // tokens of the model's vocabulary
  TokenIndex index_;                // views into texts_
  std::vector<std::pair<std::string_view, std::string_view>> merges_;
  std::vector<double> scores_;  // scores of a Unigram model
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool has_frame_ = false;
};

void Reader::read_model() {
  const json::value* value = root_.find("model");
  if (value == nullptr) {
    complaint_.add(ErrorCode::kCorrupt, "has no 'model'");
    return;
  }
  const Fields model = Fields::of(*value, "model", complaint_);
  // Old files have no type; their model is BPE.
  const std::string_view type = model.text("type", "BPE");
  if (type == "Unigram") {
    return read_unigram(model);
  }
  if (type != "BPE") {
    complaint_.add(ErrorCode::kUnsupported,
                   "model '{}' is not supported (only BPE and Unigram are)", type);
    return;
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.text(key, "").empty()) {
      complaint_.add(ErrorCode::kUnsupported, "model with '{}' is not supported", key);
    }
  }
  const json::value* dropout = model.find("dropout");
  if (dropout != nullptr && !(dropout->is_number() && dropout->to_number<double>() == 0)) {
    complaint_.add(ErrorCode::kUnsupported, "model with 'dropout' is not supported");
  }
  const json::value* vocabulary = model.find("vocab");
  if (vocabulary == nullptr) {
    complaint_.add(ErrorCode::kCorrupt, "model has no 'vocab'");
    return;
  }
  texts_ = read_token_ids(Fields::of(*vocabulary, "model vocab", complaint_));
  for (std::size_t id = 0; id < texts_.size(); ++id) {
    pipeline_.tokens.push_back({texts_[id], ""});
    if (!texts_[id].empty()) {
      index_.emplace(texts_[id], static_cast<TokenId>(id));
    }
  }
  read_merges(model);
  byte_fallback_ = model.boolean("byte_fallback", false);
  ignore_merges_ = model.boolean("ignore_merges", false);
  pipeline_.model.fuse_unknown = model.boolean("fuse_unk", false);
  if (const std::string_view unknown = model.text("unk_token", ""); !unknown.empty()) {
    const auto token = index_.find(unknown);
    if (token == index_.end()) {
      complaint_.add(ErrorCode::kCorrupt, "model's unk_token '{}' is not in its vocab", unknown);
    } else {
      pipeline_.model.unknown = token->second;
    }
  }
}

// A Unigram model's vocabulary is a list of [piece, score].
void Reader::read_unigram(const Fields& model) {
  pipeline_.unigram.emplace();
  pipeline_.unigram->program = UnigramModel::Program::kTokenizers;
  for (const json::value& entry : model.array("vocab")) {
    const json::array* pair = entry.if_array();
    if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_string() ||
        !(*pair)[1].is_number()) {
      complaint_.add(ErrorCode::kCorrupt, "entry {} of the model's vocab is no piece with a score",
                     texts_.size());
      return;
    }
    texts_.emplace_back(std::string_view((*pair)[0].get_string()));
    scores_.push_back((*pair)[1].to_number<double>());
  }
  if (texts_.empty() || std::ssize(texts_) > kLargestVocabulary) {
    complaint_.add(ErrorCode::kCorrupt, "the model's vocab has {} entries", texts_.size());
    return;
  }
  for (std::size_t id = 0; id < texts_.size(); ++id) {
    pipeline_.tokens.push_back({texts_[id], ""});
    if (!texts_[id].empty()) {
      index_.insert_or_assign(texts_[id], static_cast<TokenId>(id));
    }
  }
  byte_fallback_ = model.boolean("byte_fallback", false);
  const json::value* unknown = model.find("unk_id");
  if (unknown != nullptr && !unknown->is_null()) {
    const std::int64_t* id = unknown->if_int64();
    if (id == nullptr || *id < 0 || *id >= std::ssize(texts_)) {
      complaint_.add(ErrorCode::kCorrupt, "the model's unk_id is not among its {} pieces",
                     texts_.size());
      return;
    }
    pipeline_.unigram->unknown = static_cast<TokenId>(*id);
  }
}

void Reader::fill_unigram() {
  UnigramModel& model = *pipeline_.unigram;
  std::vector<PieceTrie::Piece> pieces;
  for (std::size_t id = 0; id < texts_.size(); ++id) {
    if (!texts_[id].empty()) {
      pieces.push_back({texts_[id], static_cast<TokenId>(id)});
    }
  }
  model.trie = PieceTrie::build(std::move(pieces));
  model.unknown_score = unknown_piece_score(*std::min_element(scores_.begin(), scores_.end()));
  model.scores = std::move(scores_);
  fill_byte_tokens();
  model.bytes = pipeline_.model.byte_tokens;
}

// A merge is "a b", or ["a", "b"] since tokens may contain spaces.
void Reader::read_merges(const Fields& model) {
  const auto view = [](const json::string& text) { return std::string_view(text); };
  for (const json::value& merge : model.array("merges")) {
    if (const json::string* text = merge.if_string()) {
      const std::string_view both = view(*text);
      const std::size_t space = both.find(' ');
      if (space != std::string_view::npos && both.find(' ', space + 1) == std::string_view::npos) {
        merges_.emplace_back(both.substr(0, space), both.substr(space + 1));
        continue;
      }
    } else if (const json::array* pair = merge.if_array()) {
      if (pair->size() == 2 && (*pair)[0].is_string() && (*pair)[1].is_string()) {
        merges_.emplace_back(view((*pair)[0].get_string()), view((*pair)[1].get_string()));
        continue;
      }
    }
    complaint_.add(ErrorCode::kCorrupt, "merge {} is not two tokens", merges_.size());
    return;
  }
}

void Reader::read_added_tokens() {
  for (const json::value& value : root_.array("added_tokens")) {
    const Fields fields = Fields::of(value, "an added token", complaint_);
    AddedToken token;
    token.content = fields.required_text("content");
    const std::int64_t id = fields.required_integer("id");
    if (complaint_.any()) {
      return;
    }
    if (id < 0 || id > largest_id(pipeline_.tokens.size()) || token.content.empty()) {
      complaint_.add(ErrorCode::kCorrupt, "added token '{}' with id {}, among {} tokens",
                     token.content, id, pipeline_.tokens.size());
      return;
    }
    token.id = static_cast<TokenId>(id);
    token.special = fields.boolean("special", false);
    token.lstrip = fields.boolean("lstrip", false);
    token.rstrip = fields.boolean("rstrip", false);
    token.single_word = fields.boolean("single_word", false);
    token.normalized = fields.boolean("normalized", !token.special);
    add_token(std::move(token));
  }
}

void Reader::add_token(AddedToken token) {
  // A token that is in the model's vocabulary keeps its id there.
  if (const auto known = index_.find(token.content); known != index_.end()) {
    token.id = known->second;
  }
  if (static_cast<std::size_t>(token.id) >= pipeline_.tokens.size()) {
    pipeline_.tokens.resize(token.id + 1);
  }
  std::string& text = pipeline_.tokens[token.id].text;
  if (!text.empty() && text != token.content) {
    complaint_.add(ErrorCode::kCorrupt, "added token '{}' has id {}, which is '{}'", token.content,
                   token.id, text);
    return;
  }
  text = token.content;
  pipeline_.added.push_back(std::move(token));
}

void Reader::read_tokens_bytes(const HfDecoder& decoder) {
  if (decoder.byte_level && !byte_level_) {
    complaint_.add(ErrorCode::kUnsupported,
                   "decoder 'ByteLevel' without pre_tokenizer 'ByteLevel' is not supported");
  }
  pipeline_.strips_leading_space = decoder.strips_leading_space;
  for (Pipeline::Token& token : pipeline_.tokens) {
    if (byte_level_) {
      token.bytes = from_byte_alphabet(token.text).value_or(token.text);
      continue;
    }
    const std::optional<int> byte =
        decoder.byte_fallback ? byte_of_token(token.text) : std::nullopt;
    if (byte) {
      token.bytes.assign(1, static_cast<char>(*byte));
      continue;
    }
    token.bytes = decoder.replacements.apply(token.text);
  }
  for (const AddedToken& token : pipeline_.added) {
    if (token.special) {
      pipeline_.tokens[token.id].bytes.clear();
    } else if (byte_level_) {
      pipeline_.tokens[token.id].bytes = token.content;
    }
  }
}

void Reader::fill_model() {
  BpeModel& model = pipeline_.model;
  model.vocabulary_size = static_cast<std::int32_t>(pipeline_.tokens.size());
  fill_byte_tokens();
  if (!byte_level_) {
    add_characters(index_, model);
  }
  if (const Status added = add_listed_merges(merges_, index_, model); !added) {
    complaint_.add(added.error());
  }
  if (ignore_merges_) {
    for (std::size_t id = 0; id < texts_.size(); ++id) {
      const std::optional<std::string> bytes =
          byte_level_ ? from_byte_alphabet(texts_[id]) : std::optional(texts_[id]);
      if (bytes && !bytes->empty()) {
        model.whole_pieces.emplace(*bytes, static_cast<TokenId>(id));
      }
    }
    for (const AddedToken& token : pipeline_.added) {
      if (token.special) {
        model.whole_pieces.erase(token.content);
      }
    }
  }
}

void Reader::fill_byte_tokens() {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    std::string text;
    if (byte_level_) {
      text = to_byte_alphabet(std::string_view(&c, 1));
    } else if (byte_fallback_) {
      text = fmt::format("<0x{:02X}>", byte);
    }
    const auto token = index_.find(text);
    pipeline_.model.byte_tokens[byte] = token == index_.end() ? -1 : token->second;
  }
}

void Reader::read_frame() {
  std::optional<HfFrame> frame = read_post_processor(root_.find("post_processor"), complaint_);
  if (!frame) {
    return;
  }
  has_frame_ = true;
  for (const std::vector<TokenId>* ids : {&frame->prefix, &frame->suffix}) {
    for (const TokenId id : *ids) {
      if (static_cast<std::size_t>(id) >= pipeline_.tokens.size()) {
        complaint_.add(ErrorCode::kCorrupt, "post_processor adds token {}, but there are {}", id,
                       pipeline_.tokens.size());
      }
    }
  }
  pipeline_.prefix = std::move(frame->prefix);
  pipeline_.suffix = std::move(frame->suffix);
}

}  // namespace

std::vector<std::string> read_token_ids(const Fields& vocabulary) {
  std::vector<std::string> texts;
  std::vector<bool> taken;
  Complaint& complaint = vocabulary.complaint();
  const std::int64_t largest = largest_id(vocabulary.object().size());
  for (const auto& member : vocabulary.object()) {
    const std::string_view text(member.key().data(), member.key().size());
    const std::int64_t* id = member.value().if_int64();
    if (id == nullptr || *id < 0 || *id > largest) {
      complaint.add(ErrorCode::kCorrupt, "{}: the id of '{}' is not a number from 0 to {}",
                    vocabulary.where(), text, largest);
      return {};
    }
    if (static_cast<std::size_t>(*id) >= texts.size()) {
      texts.resize(*id + 1);
      taken.resize(*id + 1);
    }
    if (taken[*id]) {
      complaint.add(ErrorCode::kCorrupt, "{}: '{}' and '{}' both have id {}", vocabulary.where(),
                    texts[*id], text, *id);
      return {};
    }
    taken[*id] = true;
    texts[*id] = text;
  }
  if (texts.empty()) {
    complaint.add(ErrorCode::kCorrupt, "{} is empty", vocabulary.where());
  }
  return texts;
}

Result<std::unique_ptr<Tokenizer>> parse_tokenizer_json(std::string_view text, std::string name,
                                                        const Companions& companions) {
  Complaint complaint(std::move(name));
  const Result<json::value> root = parse_json_object(text);
  if (!root) {
    complaint.add(root.error());
    return complaint.error();
  }
  Reader reader(Fields::of(*root, "the file", complaint), complaint);
  Pipeline pipeline = reader.read();
  if (complaint.any()) {
    return complaint.error();
  }
  apply_companions(companions, reader.has_frame(), pipeline);
  return make_pipeline_tokenizer(std::move(pipeline));
}

}  // namespace protean
