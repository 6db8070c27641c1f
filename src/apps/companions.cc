#include "apps/companions.h"

#include <fstream>

#include "apps/output_directory.h"
#include "model/gguf.h"
#include "replica/gguf_vocabulary.h"
#include "tokenizer/vocabulary_files.h"

namespace protean {
namespace {

namespace fs = std::filesystem;

// Writes the tokenizer and chat template of a .gguf file as files of a Hugging Face directory.
Status write_gguf_texts(const ModelFiles& files, const fs::path& source, const fs::path& target) {
  const auto gguf = GgufFile::open(source);
  if (!gguf.ok()) {
    return gguf.error();
  }
  const auto vocabulary = gguf_vocabulary(*gguf);
  if (!vocabulary.ok()) {
    return vocabulary.error();
  }
  const auto texts = vocabulary_files(*vocabulary, files.chat.template_source);
  if (!texts.ok()) {
    return texts.error();
  }
  for (const auto& [name, text] : *texts) {
    const fs::path path = target / name;
    std::ofstream file(path, std::ios::binary);
    file << text;
    file.close();
    if (!file) {
      return make_error(ErrorCode::kInternal, "{} cannot be written", path.string());
    }
  }
  return {};
}

}  // namespace

Status write_companions(const ModelFiles& files, const fs::path& source, const fs::path& target) {
  return fs::is_directory(source) ? copy_companions(source, target)
                                  : write_gguf_texts(files, source, target);
}

}  // namespace protean
