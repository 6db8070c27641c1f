#pragma once

namespace protean {

inline constexpr const char* kVersion = PROTEAN_VERSION;  // from CMakeLists.txt

}  // namespace protean
