#include "base/small_file.h"

#include <fstream>
#include <system_error>

namespace protean {

Result<std::string> read_small_file(const std::filesystem::path& path, std::int64_t most_bytes) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return make_error(ErrorCode::kInvalidArgument, "{} is not a regular file", path.string());
  }
  std::ifstream file(path, std::ios::binary);
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (!file || error) {
    return make_error(ErrorCode::kNotFound, "{}: cannot be opened", path.string());
  }
  if (size > static_cast<std::uintmax_t>(most_bytes)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} has {}, and may have {}: it is no such file of a model", path.string(),
                      format_bytes(static_cast<std::int64_t>(size)), format_bytes(most_bytes));
  }
  std::string text(size, '\0');
  file.read(text.data(), static_cast<std::streamsize>(size));
  if (file.bad()) {
    return make_error(ErrorCode::kInternal, "{}: cannot be read", path.string());
  }
  text.resize(static_cast<std::size_t>(file.gcount()));  // it may have become shorter
  return text;
}

}  // namespace protean
