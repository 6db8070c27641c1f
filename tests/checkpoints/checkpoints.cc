#include "tests/checkpoints/checkpoints.h"

#include <cstdlib>
#include <system_error>

#include "base/check.h"

namespace protean {

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "protean-XXXXXX").string();
  check(mkdtemp(name.data()) != nullptr, "tests can make a temporary directory");
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace protean
