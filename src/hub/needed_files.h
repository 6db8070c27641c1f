#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hub/model_name.h"

namespace protean::hub {

// What of a repository a model needs. `paths` are of all its files, relative to the repository.
// For safetensors that is the configuration, the tokenizer, the chat template, and the weights; for
// a GGUF the one file, or all its parts. Weights in other formats, other copies and other folders
// are left out. Fails if there is no such model in the repository, or more than one.
Result<std::vector<std::string>> needed_files(const ModelName& name,
                                              const std::vector<std::string>& paths);

// Returns the file names in a model.safetensors.index.json, sorted. Fails if the text is no index,
// or if a name leads out of the folder.
Result<std::vector<std::string>> files_of_index(std::string_view text);

// A snapshot in the cache, as far as it is there.
struct LocalModel {
  std::filesystem::path path;        // the snapshot's folder, or the GGUF in it (its first part)
  std::vector<std::string> missing;  // needed files that are not there; empty: complete
};

// Looks which of the needed files are in a snapshot's folder. If other tools fetched only a part,
// says what is missing; names files that every model needs if none of its weights are there.
Result<LocalModel> look_into_snapshot(const ModelName& name, const std::filesystem::path& snapshot);

}  // namespace protean::hub
