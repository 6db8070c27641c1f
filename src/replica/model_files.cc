#include "replica/model_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/small_file.h"
#include "model/gguf.h"
#include "replica/gguf_vocabulary.h"
#include "replica/model_options.h"
#include "replica/model_place.h"

namespace protean {
namespace {

namespace fs = std::filesystem;

struct Texts {
  std::unique_ptr<Tokenizer> tokenizer;
  InfillTokens infill;
  ChatFiles chat;
};

Result<Texts> texts_of_gguf(const fs::path& path) {
  const auto file = GgufFile::open(path);
  if (!file.ok()) {
    return file.error();
  }
  auto vocabulary = gguf_vocabulary(*file);
  if (!vocabulary.ok()) {
    return vocabulary.error();
  }
  auto tokenizer = make_tokenizer(*std::move(vocabulary));
  if (!tokenizer.ok()) {
    return make_error(tokenizer.error().code, "{}: {}", path.string(), tokenizer.error().message);
  }
  auto chat = gguf_chat_files(*file, **tokenizer);
  if (!chat.ok()) {
    return chat.error();
  }
  const auto infill = gguf_infill_tokens(*file, **tokenizer);
  if (!infill.ok()) {
    return infill.error();
  }
  return Texts{*std::move(tokenizer), *infill, *std::move(chat)};
}

Result<Texts> texts_of_directory(const fs::path& path) {
  auto tokenizer = load_tokenizer(path);
  if (!tokenizer.ok()) {
    return tokenizer.error();
  }
  auto chat = read_chat_files(path);
  if (!chat.ok()) {
    return chat.error();
  }
  const InfillTokens infill = find_infill_tokens(**tokenizer);
  return Texts{*std::move(tokenizer), infill, *std::move(chat)};
}

Result<std::string> read_text(const std::string& path) {
  auto source = read_small_file(path);
  if (!source.ok()) {
    return make_error(source.error().code, "--chat-template {}: cannot be read: {}", path,
                      source.error().message);
  }
  if (source->empty()) {
    return make_error(ErrorCode::kInvalidArgument, "--chat-template {}: the file is empty", path);
  }
  return source;
}

Result<ChatTemplate> template_of(const ModelOptions& options, const std::string& source) {
  if (source.empty()) {
    return ChatTemplate::chatml();
  }
  auto parsed = ChatTemplate::parse(source);
  if (parsed.ok()) {
    return parsed;
  }
  if (!options.chat_template.empty()) {
    return make_error(parsed.error().code, "--chat-template {}: {}", options.chat_template,
                      parsed.error().message);
  }
  return make_error(parsed.error().code,
                    "{}: cannot use its chat template: {}; replace it with --chat-template",
                    options.model, parsed.error().message);
}

void add_stop(GenerationDefaults& generation, TokenId id) {
  std::vector<TokenId>& stops = generation.stop_ids;
  if (id >= 0 && std::find(stops.begin(), stops.end(), id) == stops.end()) {
    stops.push_back(id);
  }
}

}  // namespace

Result<ModelFiles> open_model_files(const ModelOptions& options) {
  const fs::path path(options.model);
  std::error_code unknown;  // open_checkpoint() says why
  const bool is_folder = fs::is_directory(path, unknown);
  SeenFiles seen;  // before they are read, so that no later write is missed
  if (is_folder) {
    seen.see(path);
  }
  if (!options.chat_template.empty()) {
    seen.see(options.chat_template);
  }
  auto checkpoint = open_checkpoint(path);
  if (!checkpoint.ok()) {
    return checkpoint.error();
  }
  auto texts = is_folder ? texts_of_directory(path) : texts_of_gguf(path);
  if (!texts.ok()) {
    return texts.error();
  }
  const int vocab = (*checkpoint)->spec().vocab;
  if (texts->tokenizer->vocab_size() > vocab) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: its tokenizer has {} tokens, but its embedding matrix has {} rows: the "
                      "files do not belong together",
                      options.model, texts->tokenizer->vocab_size(), vocab);
  }
  if (!options.chat_template.empty()) {
    auto source = read_text(options.chat_template);
    if (!source.ok()) {
      return source.error();
    }
    texts->chat.template_source = *std::move(source);
  }
  auto chat_template = template_of(options, texts->chat.template_source);
  if (!chat_template.ok()) {
    return chat_template.error();
  }
  GenerationDefaults generation = (*checkpoint)->generation();
  add_stop(generation, texts->tokenizer->eos());
  if (!is_folder) {
    // Older GGUF files do not state the token that ends a turn.
    add_stop(generation, texts->tokenizer->find_special("<|eot_id|>"));
    add_stop(generation, texts->tokenizer->find_special("<|im_end|>"));
  }
  ModelSpec spec = (*checkpoint)->spec();
  return ModelFiles{.name = options.name.empty() ? model_name_at(path) : options.name,
                    .checkpoint = *std::move(checkpoint),
                    .spec = std::move(spec),
                    .tokenizer = std::move(texts->tokenizer),
                    .infill = texts->infill,
                    .chat = std::move(texts->chat),
                    .chat_template = *std::move(chat_template),
                    .generation = std::move(generation),
                    .seen = std::move(seen)};
}

Status ModelFiles::current() const {
  Status weights = checkpoint->current();
  return weights.ok() ? seen.current() : weights;
}

void ModelFiles::take_weights(ModelFiles&& from) {
  checkpoint = std::move(from.checkpoint);
  seen = std::move(from.seen);
}

bool same_but_for_weights(const ModelFiles& one, const ModelFiles& other) {
  return one.spec == other.spec && one.tokenizer->equals(*other.tokenizer) &&
         one.chat == other.chat;
}

}  // namespace protean
