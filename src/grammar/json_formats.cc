#include "grammar/json_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"
#include "grammar/regex_parser.h"

namespace protean::grammar {

namespace {

struct Format {
  std::string_view name;
  std::string pattern;
};

const std::vector<Format>& formats() {
  static const std::vector<Format> kFormats = [] {
    const std::string leap_year =
        "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)";
    const std::string date =
        "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|"
        "30)|02-(?:0[1-9]|1\\d|2[0-8]))|" +
        leap_year + "-02-29)";
    const std::string zone = "(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";
    const std::string time = "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?" + zone;
    const std::string byte = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
    const std::string ipv4 = "(?:" + byte + "\\.){3}" + byte;
    const std::string label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
    const std::string host = label + "(?:\\." + label + "){0,3}";
    const std::string h16 = "[0-9a-fA-F]{1,4}";
    const std::string ls32 = "(?:" + h16 + ":" + h16 + "|" + ipv4 + ")";
    std::string ipv6 = "(?:" + h16 + ":){6}" + ls32;
    for (int before = 0; before <= 7; ++before) {  // groups before '::'; the rest has fewer than 8
      const std::string left =
          before == 0 ? "" : fmt::format("{0}(?::{0}){{{1}}}", h16, before - 1);
      const int after = 7 - before;
      ipv6 += fmt::format("|{}::", left);
      if (after > 0) {
        ipv6 += fmt::format("(?:{0}(?::{0}){{0,{1}}})?", h16, after - 1);
      }
      if (after >= 2) {
        ipv6 += fmt::format("|{}::(?:{}:){{0,{}}}{}", left, h16, after - 2, ipv4);
      }
    }
    const std::string atom = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+";
    const std::string pchar = "(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})";
    const std::string tail = "(?:\\?(?:" + pchar + "|[/?])*)?(?:#(?:" + pchar + "|[/?])*)?";
    const std::string uri = "[a-zA-Z][a-zA-Z0-9+.-]*:(?://" + host + "(?::\\d{1,5})?(?:/" + pchar +
                            "*)*|" + pchar + "+(?:/" + pchar + "*)*)" + tail;
    const std::string duration_time = "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)";
    const std::string duration_date = "(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)";
    return std::vector<Format>{
        {"date", date},
        {"time", time},
        {"date-time", date + "T" + time},
        {"duration",
         "P(?:" + duration_date + "(?:" + duration_time + ")?|" + duration_time + "|\\d+W)"},
        {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
        {"email", atom + "(?:\\." + atom + ")*@" + label + "(?:\\." + label + "){1,3}"},
        {"hostname", host},
        {"ipv4", ipv4},
        {"ipv6", ipv6},
        {"uri", uri},
    };
  }();
  return kFormats;
}

}  // namespace

std::optional<Language> string_format(std::string_view name) {
  for (const Format& format : formats()) {
    if (format.name == name) {
      Result<Language> language =
          parse_regex(format.pattern, RegexDialect::kEcmaScript, RegexMatch::kWhole);
      check(language.ok(), "a format's own pattern is right");
      return std::move(*language);
    }
  }
  return std::nullopt;
}

std::optional<DecimalRange> number_format(std::string_view name) {
  DecimalRange range;
  const auto between = [&range](std::int64_t least, std::int64_t most) {
    range.at_least({Decimal::of(least), true});
    range.at_most({Decimal::of(most), true});
    range.fraction_digits = 0;
    return range;
  };
  if (name == "int32") {
    return between(std::numeric_limits<std::int32_t>::min(),
                   std::numeric_limits<std::int32_t>::max());
  }
  if (name == "int64") {
    return between(std::numeric_limits<std::int64_t>::min(),
                   std::numeric_limits<std::int64_t>::max());
  }
  return name == "float" || name == "double" ? std::optional(range) : std::nullopt;
}

std::string known_formats() {
  std::string names;
  for (const Format& format : formats()) {
    names += std::string(format.name) + ", ";
  }
  return names + "int32, int64, float and double";
}

}  // namespace protean::grammar
