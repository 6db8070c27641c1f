#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "contract/form.h"

namespace protean {

// Numbers the precisions of forms. Forms of equal precisions have equal tags, so that the prefix
// cache finds blocks of a form that comes back; a label is what operators read of them. Counts
// output tokens by label. The first form's tag is 0; MorphRun asks for that of full precision
// first. Single-threaded.
class PrecisionLedger {
 public:
  // One request's output tokens by label; few labels each.
  using Counts = std::vector<std::pair<int, std::int64_t>>;

  std::uint32_t tag_of(const Form& form);

  // Counts a token that was drawn by a step with this tag. Returns the label.
  std::shared_ptr<const std::string> count(std::uint32_t tag, Counts& counts);
  std::int64_t tokens() const { return tokens_; }

  std::vector<TokensAt> named(const Counts& counts) const;
  std::vector<TokensAt> totals() const { return named(totals_); }
  // Goes on from what another ledger has counted.
  void go_on_from(const std::vector<TokensAt>& totals);

 private:
  int label_index(const std::string& label);

  // The key has a byte for each component's precision.
  std::unordered_map<std::string, std::uint32_t> tags_;
  std::uint32_t next_tag_ = 0;
  std::vector<int> label_of_tag_;
  std::vector<std::shared_ptr<const std::string>> labels_;
  Counts totals_;
  std::int64_t tokens_ = 0;
};

}  // namespace protean
