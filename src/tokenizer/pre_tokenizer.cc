#include "tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <cstddef>

namespace protean {
namespace {

using Behavior = PreTokenizer::Behavior;
using Piece = std::string_view;

struct Segment {
  std::size_t begin;
  std::size_t end;
  bool is_match;
};

// Returns the matches and the text between them, in order, without gaps.
void cut(const PreTokenizer::Split& step, Piece piece, std::vector<Regex::Match>& matches,
         std::vector<Segment>& segments) {
  matches.clear();
  segments.clear();
  step.pattern.find_all(piece, matches);
  std::size_t from = 0;
  for (const Regex::Match& match : matches) {
    if (match.begin > from) {
      segments.push_back({from, match.begin, step.invert});
    }
    segments.push_back({match.begin, match.end, !step.invert});
    from = match.end;
  }
  if (from < piece.size()) {
    segments.push_back({from, piece.size(), step.invert});
  }
}

// Joins neighbours according to the behaviour, in place: joined[0..n) is the result.
void join(Behavior behavior, std::vector<Segment>& segments) {
  if (behavior == Behavior::kIsolated) {
    return;
  }
  if (behavior == Behavior::kRemoved) {
    std::erase_if(segments, [](const Segment& segment) { return segment.is_match; });
    return;
  }
  const bool backwards = behavior == Behavior::kMergedWithNext;
  if (backwards) {
    std::reverse(segments.begin(), segments.end());
  }
  std::vector<Segment> joined;
  bool last_is_match = false;
  for (const Segment& segment : segments) {
    const bool joins = behavior == Behavior::kContiguous ? segment.is_match == last_is_match
                                                         : segment.is_match && !last_is_match;
    if (joins && !joined.empty()) {
      joined.back().begin = std::min(joined.back().begin, segment.begin);
      joined.back().end = std::max(joined.back().end, segment.end);
    } else {
      joined.push_back(segment);
    }
    last_is_match = segment.is_match;
  }
  if (backwards) {
    std::reverse(joined.begin(), joined.end());
  }
  segments = std::move(joined);
}

void apply(const PreTokenizer::Split& step, PreTokenizer::Pieces& text) {
  std::vector<Piece> result;
  std::vector<Regex::Match> matches;
  std::vector<Segment> segments;
  for (const Piece piece : text.pieces) {
    cut(step, piece, matches, segments);
    join(step.behavior, segments);
    for (const Segment& segment : segments) {
      if (segment.end > segment.begin) {
        result.push_back(piece.substr(segment.begin, segment.end - segment.begin));
      }
    }
  }
  text.pieces = std::move(result);
}

void apply(const PreTokenizer::PrefixSpace&, PreTokenizer::Pieces& text) {
  for (Piece& piece : text.pieces) {
    if (!piece.starts_with(' ')) {
      std::string& changed = text.changed.emplace_back(1, ' ');
      changed += piece;
      piece = changed;
    }
  }
}

void apply(const PreTokenizer::Metaspace& step, bool at_start, PreTokenizer::Pieces& text) {
  using Prepend = PreTokenizer::Metaspace::Prepend;
  bool first = at_start;
  for (Piece& piece : text.pieces) {
    std::string changed;
    for (const char c : piece) {
      if (c == ' ') {
        changed += step.replacement;
      } else {
        changed += c;
      }
    }
    const bool wanted =
        step.prepend == Prepend::kAlways || (step.prepend == Prepend::kFirst && first);
    if (wanted && !changed.starts_with(step.replacement)) {
      changed.insert(0, step.replacement);
    }
    piece = text.changed.emplace_back(std::move(changed));
    first = false;
  }
}

}  // namespace

PreTokenizer::Pieces PreTokenizer::split(std::string_view text, bool at_start) const {
  Pieces result;
  if (text.empty()) {
    return result;
  }
  result.pieces.push_back(text);
  for (const Step& step : steps_) {
    if (const auto* split = std::get_if<Split>(&step)) {
      apply(*split, result);
    } else if (const auto* space = std::get_if<PrefixSpace>(&step)) {
      apply(*space, result);
    } else {
      apply(std::get<Metaspace>(step), at_start, result);
    }
  }
  return result;
}

}  // namespace protean
