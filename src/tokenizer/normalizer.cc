#include "tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/casemap.h>
#include <unicode/normalizer2.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace protean {
namespace {

const icu::Normalizer2* icu_normalizer(Normalizer::Unicode form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* found = nullptr;
  switch (form) {
    case Normalizer::Unicode::kNfc:
      found = icu::Normalizer2::getNFCInstance(status);
      break;
    case Normalizer::Unicode::kNfd:
      found = icu::Normalizer2::getNFDInstance(status);
      break;
    case Normalizer::Unicode::kNfkc:
      found = icu::Normalizer2::getNFKCInstance(status);
      break;
    case Normalizer::Unicode::kNfkd:
      found = icu::Normalizer2::getNFKDInstance(status);
      break;
    case Normalizer::Unicode::kLowercase:
      break;
  }
  check(U_SUCCESS(status), "ICU has its normalization data built in");
  return found;
}

// Precondition: valid is UTF-8.
void append_unicode(Normalizer::Unicode form, std::string_view valid, std::string& out) {
  UErrorCode status = U_ZERO_ERROR;
  std::string result;
  icu::StringByteSink<std::string> sink(&result);
  const icu::StringPiece source(valid.data(), static_cast<std::int32_t>(valid.size()));
  if (form == Normalizer::Unicode::kLowercase) {
    icu::CaseMap::utf8ToLower("", 0, source, sink, nullptr, status);
  } else {
    icu_normalizer(form)->normalizeUTF8(0, source, sink, nullptr, status);
  }
  // Fails only for lack of memory; then the text stays as it is.
  out += U_SUCCESS(status) ? std::string_view(result) : valid;
}

// Keeps broken bytes, which ICU would replace.
std::string unicode(Normalizer::Unicode form, std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t valid = utf8_valid_prefix(text);
    append_unicode(form, text.substr(0, valid), out);
    text.remove_prefix(valid);
    if (!text.empty()) {
      const auto broken = static_cast<std::size_t>(utf8_step(text).bytes);
      out += text.substr(0, broken);
      text.remove_prefix(broken);
    }
  }
  return out;
}

std::string replace(const Normalizer::Replace& step, std::string_view text) {
  std::string out;
  std::size_t from = 0;
  for (std::size_t at; (at = text.find(step.from, from)) != std::string_view::npos;
       from = at + step.from.size()) {
    out += text.substr(from, at - from);
    out += step.to;
  }
  out += text.substr(from);
  return out;
}

std::string replace(const Normalizer::ReplaceMatches& step, std::string_view text) {
  std::vector<Regex::Match> matches;
  step.pattern.find_all(text, matches);
  std::string out;
  std::size_t from = 0;
  for (const Regex::Match& match : matches) {
    out += text.substr(from, match.begin - from);
    out += step.to;
    from = match.end;
  }
  out += text.substr(from);
  return out;
}

}  // namespace

void Normalizer::add(Step step) {
  steps_.push_back(std::move(step));
}

std::string Normalizer::apply(std::string_view text) const {
  return run(text, true);
}

std::string Normalizer::apply_inside(std::string_view text) const {
  return run(text, false);
}

double Normalizer::growth() const {
  double growth = 1;
  for (const Step& step : steps_) {
    if (const auto* fixed = std::get_if<Replace>(&step)) {
      growth *= std::max(1.0, static_cast<double>(fixed->to.size()) / fixed->from.size());
    } else if (const auto* matches = std::get_if<ReplaceMatches>(&step)) {
      growth *= 1.0 + matches->to.size();  // an empty match is possible between any two bytes
    } else if (const auto* characters = std::get_if<Characters>(&step)) {
      growth *= characters->map.growth();
    }
  }
  return growth;
}

std::string Normalizer::run(std::string_view text, bool prepend) const {
  std::string out(text);
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<Unicode>(&step)) {
      const bool ascii = std::none_of(out.begin(), out.end(), [](char c) { return c & 0x80; });
      if (!ascii || *form == Unicode::kLowercase) {
        out = unicode(*form, out);
      }
    } else if (const auto* front = std::get_if<Prepend>(&step)) {
      if (prepend && !out.empty()) {
        out.insert(0, front->text);
      }
    } else if (const auto* fixed = std::get_if<Replace>(&step)) {
      out = replace(*fixed, out);
    } else if (const auto* characters = std::get_if<Characters>(&step)) {
      out = characters->match == Match::kLongest ? characters->map.replace_longest(out)
                                                 : characters->map.replace_clusters(out);
    } else {
      out = replace(std::get<ReplaceMatches>(step), out);
    }
  }
  return out;
}

}  // namespace protean
