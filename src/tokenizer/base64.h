#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace protean {

inline constexpr std::string_view kBase64Alphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Returns the bytes that a text in base64 stands for; nothing if it has other characters.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace protean
