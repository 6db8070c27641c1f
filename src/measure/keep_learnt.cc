#include "measure/keep_learnt.h"

namespace protean {

std::string keep_learnt(const VariantStore& store,
                        const std::function<Status(const std::filesystem::path& directory)>& save) {
  const std::filesystem::path directory = store.model_directory();
  if (directory.empty()) {
    return "not kept: there is no cache folder";
  }
  const Status saved = save(directory);
  return saved.ok() ? "kept in " + directory.string() : "not kept: " + saved.error().message;
}

}  // namespace protean
