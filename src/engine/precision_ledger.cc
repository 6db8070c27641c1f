#include "engine/precision_ledger.h"

#include <algorithm>

namespace protean {
namespace {

// A tag is never given twice. A form that was forgotten gets a new tag, and its blocks are not
// found.
constexpr std::size_t kRememberedTags = 4096;

void add_one(PrecisionLedger::Counts& counts, int label) {
  const auto found = std::find_if(counts.begin(), counts.end(),
                                  [label](const auto& count) { return count.first == label; });
  if (found == counts.end()) {
    counts.emplace_back(label, 1);
  } else {
    ++found->second;
  }
}

}  // namespace

std::uint32_t PrecisionLedger::tag_of(const Form& form) {
  std::string parts(1, static_cast<char>(index_of(form.embeddings)));
  for (const LayerPrecision& layer : form.layer_precision) {
    parts.push_back(static_cast<char>(index_of(layer.attention)));
    parts.push_back(static_cast<char>(index_of(layer.mlp)));
  }
  if (const auto known = tags_.find(parts); known != tags_.end()) {
    return known->second;
  }
  if (tags_.size() == kRememberedTags) {
    tags_.clear();
  }
  label_of_tag_.push_back(label_index(precision_label(form)));
  tags_.emplace(std::move(parts), next_tag_);
  return next_tag_++;
}

int PrecisionLedger::label_index(const std::string& label) {
  auto place = std::find_if(labels_.begin(), labels_.end(),
                            [&](const auto& known) { return *known == label; });
  if (place == labels_.end()) {
    place = labels_.insert(place, std::make_shared<const std::string>(label));
  }
  return static_cast<int>(place - labels_.begin());
}

void PrecisionLedger::go_on_from(const std::vector<TokensAt>& totals) {
  totals_.clear();
  tokens_ = 0;
  for (const TokensAt& some : totals) {
    totals_.emplace_back(label_index(some.precision), some.tokens);
    tokens_ += some.tokens;
  }
}

std::shared_ptr<const std::string> PrecisionLedger::count(std::uint32_t tag, Counts& counts) {
  const int label = label_of_tag_.at(tag);
  add_one(counts, label);
  add_one(totals_, label);
  ++tokens_;
  return labels_[static_cast<std::size_t>(label)];
}

std::vector<TokensAt> PrecisionLedger::named(const Counts& counts) const {
  std::vector<TokensAt> named;
  named.reserve(counts.size());
  for (const auto& [label, tokens] : counts) {
    named.push_back({*labels_[static_cast<std::size_t>(label)], tokens});
  }
  return named;
}

}  // namespace protean
