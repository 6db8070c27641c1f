#include "tokenizer/charsmap.h"

#include <unicode/brkiter.h>
#include <unicode/locid.h>
#include <unicode/utext.h>

#include <algorithm>
#include <memory>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace protean {
namespace {

constexpr std::size_t kLongestCluster = 5;  // in bytes

// The parts of a unit of darts-clone's double array.
bool has_leaf(std::uint32_t unit) {
  return (unit >> 8U & 1U) != 0;
}
std::uint32_t value_of(std::uint32_t unit) {
  return unit & 0x7fffffffU;
}
std::uint32_t label_of(std::uint32_t unit) {
  return unit & 0x800000ffU;
}
std::uint32_t offset_of(std::uint32_t unit) {
  return (unit >> 10U) << ((unit & 0x200U) >> 6U);
}

// Calls `take` with each grapheme cluster of a text.
template <class Take>
void for_each_cluster(std::string_view text, Take take) {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<icu::BreakIterator> clusters(
      icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), status));
  UText* utf8 =
      utext_openUTF8(nullptr, text.data(), static_cast<std::int64_t>(text.size()), &status);
  check(U_SUCCESS(status), "ICU has the rules of grapheme clusters built in");
  clusters->setText(utf8, status);
  std::int32_t begin = clusters->first();
  for (std::int32_t end = clusters->next(); end != icu::BreakIterator::DONE;
       end = clusters->next()) {
    take(text.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
    begin = end;
  }
  utext_close(utf8);
}

}  // namespace

Result<Charsmap> Charsmap::read(std::string_view bytes) {
  const auto number_at = [&](std::size_t at) {
    std::uint32_t number = 0;
    for (std::size_t i = 4; i-- > 0;) {
      number = number << 8U | static_cast<unsigned char>(bytes[at + i]);
    }
    return number;
  };
  if (bytes.size() < 4 || number_at(0) % 4 != 0 || number_at(0) > bytes.size() - 4) {
    return make_error(ErrorCode::kCorrupt,
                      "the precompiled charsmap has {} bytes, which is not what "
                      "it says",
                      bytes.size());
  }
  const std::size_t trie_end = 4 + number_at(0);
  Charsmap map;
  for (std::size_t at = 4; at < trie_end; at += 4) {
    map.units_.push_back(number_at(at));
  }
  map.replacements_ = bytes.substr(trie_end);
  for (std::size_t at = 0; at < map.replacements_.size();) {
    const std::size_t end = std::min(map.replacements_.find('\0', at), map.replacements_.size());
    map.longest_ = std::max(map.longest_, end - at);
    at = end + 1;
  }
  return map;
}

double Charsmap::growth() const {
  double growth = std::max(1.0, static_cast<double>(longest_) / 2.0);
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    growth = std::max(growth, static_cast<double>(find({&text, 1}, true).to.size()));
  }
  return growth;
}

Charsmap::Found Charsmap::find(std::string_view text, bool longest) const {
  Found found;
  if (units_.empty()) {
    return found;
  }
  std::uint32_t node = offset_of(units_[0]);
  for (std::size_t i = 0; i < text.size() && text[i] != '\0'; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) {
      break;
    }
    const std::uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (has_leaf(unit) && node < units_.size()) {
      const std::string_view rest =
          std::string_view(replacements_)
              .substr(std::min<std::size_t>(value_of(units_[node]), replacements_.size()));
      found = {i + 1, rest.substr(0, rest.find('\0'))};
      if (!longest) {
        break;
      }
    }
  }
  return found;
}

std::string Charsmap::replace_longest(std::string_view text) const {
  std::string out;
  while (!text.empty()) {
    const Found found = find(text, true);
    const std::size_t taken =
        found.bytes > 0 ? found.bytes : static_cast<std::size_t>(utf8_step(text).bytes);
    out += found.bytes > 0 ? found.to : text.substr(0, taken);
    text.remove_prefix(taken);
  }
  return out;
}

void Charsmap::append_cluster(std::string_view cluster, std::string& out) const {
  if (cluster.size() <= kLongestCluster) {
    if (const Found found = find(cluster, false); found.bytes > 0) {
      out += found.to;
      return;
    }
  }
  while (!cluster.empty()) {
    const std::string_view character =
        cluster.substr(0, static_cast<std::size_t>(utf8_step(cluster).bytes));
    const Found found = find(character, false);
    out += found.bytes > 0 ? found.to : character;
    cluster.remove_prefix(character.size());
  }
}

std::string Charsmap::replace_clusters(std::string_view text) const {
  std::string out;
  const bool ascii = std::none_of(text.begin(), text.end(), [](char c) { return (c & 0x80) != 0; });
  if (!ascii) {
    for_each_cluster(text, [&](std::string_view cluster) { append_cluster(cluster, out); });
    return out;
  }
  for (std::size_t at = 0; at < text.size();) {  // only CR LF is a cluster of several
    const std::size_t bytes = text.substr(at, 2) == "\r\n" ? 2 : 1;
    append_cluster(text.substr(at, bytes), out);
    at += bytes;
  }
  return out;
}

}  // namespace protean
