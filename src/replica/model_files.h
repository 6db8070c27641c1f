#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "chat/chat_template.h"
#include "model/checkpoint.h"
#include "replica/model_options.h"
#include "replica/seen_files.h"
#include "tokenizer/infill_tokens.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// The files of a model, opened and checked. Weights are still on disk.
struct ModelFiles {
  std::string name;  // as the user gave it, or that of the path (model_name_at)
  std::shared_ptr<Checkpoint> checkpoint;  // another one once written files are opened again
  ModelSpec spec;                          // of each of them
  std::unique_ptr<Tokenizer> tokenizer;
  InfillTokens infill;
  ChatFiles chat;  // has the source of the template in use; empty if ChatML stands in
  ChatTemplate chat_template;
  GenerationDefaults generation;  // from the checkpoint; the tokenizer's EOS is added to its stops
  SeenFiles seen;                 // of the model's folder, and the file of --chat-template

  // Fails if open_model_files() would read other files than these.
  Status current() const;
  // Takes the weights of files that are the same but for weights, and were opened later.
  void take_weights(ModelFiles&& from);
};

Result<ModelFiles> open_model_files(const ModelOptions& options);

// Returns true if both have the same shape, tokenizer, chat template and tokens that begin and end
// its text. Does not compare the defaults for generation.
bool same_but_for_weights(const ModelFiles& one, const ModelFiles& other);

}  // namespace protean
