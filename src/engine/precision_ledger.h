#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "contract/form.h"

namespace protean {

// Numbers for what forms compute at: a tag names a map of layer precisions (equal maps, equal tags,
// so that the prefix cache finds its blocks again when a form comes back), a label what people read
// of it. Counts output tokens by label. The first form's tag is 0. Single-threaded.
class PrecisionLedger {
 public:
  // Of one request's output tokens; few labels each.
  using Counts = std::vector<std::pair<int, std::int64_t>>;

  std::uint32_t tag_of(const Form& form);

  // A token was drawn by a step of this tag.
  void count(std::uint32_t tag, Counts& counts);
  std::int64_t tokens() const { return tokens_; }

  std::vector<TokensAt> named(const Counts& counts) const;
  std::vector<TokensAt> totals() const { return named(totals_); }

 private:
  std::unordered_map<std::string, std::uint32_t> tags_;  // by a byte for each part's precision
  std::uint32_t next_tag_ = 0;
  std::vector<int> label_of_tag_;
  std::vector<std::string> labels_;
  Counts totals_;
  std::int64_t tokens_ = 0;
};

}  // namespace protean
