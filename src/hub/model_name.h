#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace protean::hub {

// The name of a model on a Hugging Face hub, written ORG/NAME[:FILE][@REVISION].
struct ModelName {
  std::string repo;      // "ORG/NAME"
  std::string file;      // quantisation or file name of a GGUF; empty: the safetensors
  std::string revision;  // a branch, a tag or a commit; empty: main

  std::string branch() const { return revision.empty() ? "main" : revision; }
};

// Fails if `text` breaks the hub's rules for names. Does not ask whether the model exists.
Result<ModelName> parse_model_name(std::string_view text);

// Writes the name as parse_model_name() reads it.
std::string to_string(const ModelName& name);

// True for the 40 hexadecimal digits of a commit.
bool is_commit(std::string_view text);

}  // namespace protean::hub
