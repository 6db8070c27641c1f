#include "grammar/mask_cache.h"

#include <algorithm>
#include <bit>
#include <map>
#include <span>
#include <unordered_set>
#include <utility>

#include "base/check.h"

namespace protean::grammar {

namespace {

void set_bits(std::span<const TokenId> ids, TokenMask mask) {
  for (const TokenId id : ids) {
    mask[static_cast<std::size_t>(id) / 64] |= std::uint64_t{1} << (static_cast<unsigned>(id) % 64);
  }
}

bool none(TokenMask mask) {
  return std::all_of(mask.begin(), mask.end(), [](std::uint64_t word) { return word == 0; });
}

}  // namespace

MaskCache::MaskCache(std::string key, std::shared_ptr<const Automaton> automaton,
                     std::shared_ptr<const TokenTable> tokens,
                     std::shared_ptr<GrammarMemory> memory)
    : key_(std::move(key)),
      automaton_(std::move(automaton)),
      tokens_(std::move(tokens)),
      memory_(std::move(memory)),
      grammar_bytes_(sizeof(MaskCache) + key_.capacity() + automaton_->bytes()),
      stacks_(*automaton_) {
  path_.resize(tokens_->longest_bytes() + std::size_t{1});
  memory_->add_grammar(grammar_bytes_);
  account();
}

MaskCache::~MaskCache() {
  memory_->resize_masks(bytes_, 0);
  memory_->remove_grammar(grammar_bytes_);
}

std::uint64_t MaskCache::generation() {
  if (full()) {
    stacks_ = StackSets(*automaton_);
    partials_ = {};
    masks_ = {};
    partial_bytes_ = 0;
    ++generation_;
    account();
  }
  return generation_;
}

SetId MaskCache::advance(SetId set, TokenId token) {
  const std::string_view bytes = tokens_->bytes(token);
  if (bytes.empty()) {
    return kNoStacks;
  }
  for (const char byte : bytes) {
    set = stacks_.step(set, static_cast<std::uint8_t>(byte));
    if (set == kNoStacks) {
      break;
    }
  }
  return set;
}

bool MaskCache::full() const {
  return bytes_ > kMaxBytes || (memory_->exceeded() && bytes_ > memory_->fair_mask_bytes());
}

void MaskCache::account() {
  const std::size_t bytes =
      stacks_.bytes() + partial_bytes_ + masks_.size() * tokens_->mask_words() * 8;
  memory_->resize_masks(bytes_, bytes);
  bytes_ = bytes;
}

void MaskCache::mask(SetId set, TokenMask mask) {
  check(mask.size() == tokens_->mask_words(), "a mask has the vocabulary's words");
  if (const auto it = masks_.find(set); it != masks_.end()) {
    std::copy(it->second.begin(), it->second.end(), mask.begin());
    return;
  }
  fill(set, mask);
  // A vocabulary that lacks some bytes may have no token for what must come. The answer then ends,
  // because the sampler needs a token.
  if (none(mask)) {
    set_bits(tokens_->stop_ids(), mask);
  }
  if ((masks_.size() + 1) * mask.size_bytes() > kMaxMaskBytes) {
    masks_.clear();  // masks are cheap to rebuild from partials_
  }
  masks_.emplace(set, std::vector<std::uint64_t>(mask.begin(), mask.end()));
  account();
}

void MaskCache::fill(SetId set, TokenMask mask) {
  std::fill(mask.begin(), mask.end(), 0);
  for (const FrameGroup& group : frame_groups(set)) {
    const Partial& known = partial(group.above);
    for (std::size_t word = 0; word < known.dense.size(); ++word) {
      mask[word] |= known.dense[word];
    }
    set_bits(known.sparse, mask);
    const SetId after = known.escapes.empty() ? kNoStacks : stacks_.resume(group.below);
    for (const std::uint32_t node : known.escapes) {
      walk(*known.trie, node, after,
           [&](std::uint32_t reached, SetId) { set_bits(known.trie->tokens(reached), mask); });
    }
  }
  if (stacks_.at_end(set)) {
    set_bits(tokens_->stop_ids(), mask);
  }
}

bool MaskCache::stuck_at_start() {
  const std::scoped_lock lock(mutex_);
  std::vector<std::uint64_t> mask(tokens_->mask_words());
  fill(stacks_.start(), mask);
  return none(mask);
}

void MaskCache::warm() {
  constexpr std::size_t kMostNodes = 2'000'000;  // about 20 ms
  constexpr std::size_t kMostSets = 256;
  std::vector<std::uint64_t> words(tokens_->mask_words());
  std::vector<SetId> sets;
  std::unordered_set<SetId> seen{kNoStacks};
  std::uint64_t begun = 0;
  for (std::size_t i = 0; i == 0 || i < sets.size(); ++i) {
    const std::scoped_lock lock(mutex_);  // released in each round, so that steps need not wait
    if (i == 0) {
      if (std::exchange(warm_, true)) {
        return;
      }
      begun = generation_;
      sets.push_back(stacks_.start());
      seen.insert(stacks_.start());
    }
    // A reset by another thread makes the numbers in `sets` invalid.
    if (generation_ != begun || walked_ > kMostNodes || full()) {
      return;
    }
    mask(sets[i], words);
    for (std::size_t byte = 0; byte < 256 && sets.size() < kMostSets; ++byte) {
      const SetId next = stacks_.step(sets[i], static_cast<std::uint8_t>(byte));
      if (seen.insert(next).second) {
        sets.push_back(next);
      }
    }
  }
}

// Groups the top frames by the frames below them. Those inside a JSON string stay apart.
std::vector<MaskCache::FrameGroup> MaskCache::frame_groups(SetId set) {
  std::map<SetId, std::vector<Frame>> together;
  std::vector<std::pair<Frame, SetId>> strings;
  for (const Frame& frame : stacks_.frames(set)) {
    if (frame.state <= kBottomState) {
      continue;
    }
    if (automaton_->string_loop[frame.state] != 0) {
      strings.emplace_back(frame, frame.below);
    } else {
      together[frame.below].push_back(frame);
    }
  }
  std::vector<FrameGroup> groups;
  for (const auto& [frame, below] : strings) {
    groups.push_back({string_key(frame), below});
  }
  for (const auto& [below, frames] : together) {
    groups.push_back({stacks_.above_bottom(frames), below});
  }
  return groups;
}

// Returns the frame over kBottomStacks, with a count that stands for all counts that are alike: no
// token is long enough to tell apart counts that are far from both bounds of a string's length.
SetId MaskCache::string_key(Frame frame) {
  const Loop& loop = automaton_->loops[automaton_->string_loop[frame.state] - 1];
  const std::uint32_t longest = tokens_->longest_bytes();
  if (loop.most == kNoLimit || loop.most - frame.count > longest) {
    if (frame.count + longest < loop.least) {
      frame.count = 1;
    } else if (frame.count >= loop.least && loop.most != kNoLimit) {
      frame.count = std::max(loop.least, std::uint32_t{1});
    }
  }
  return stacks_.above_bottom(std::span(&frame, 1));
}

const MaskCache::Partial& MaskCache::partial(SetId above) {
  const auto it = partials_.find(above);
  if (it != partials_.end()) {
    return it->second;
  }
  Partial made = compressed(work_out(above));
  partial_bytes_ += made.bytes();
  return partials_.emplace(above, std::move(made)).first->second;
}

MaskCache::Partial MaskCache::work_out(SetId above) {
  Partial made;
  made.dense.assign(tokens_->mask_words(), 0);
  made.trie = &tokens_->all();
  const Frame first = stacks_.frames(above).front();
  if (const std::uint32_t string = automaton_->string_loop[first.state]; string != 0) {
    // The count includes the character about to come.
    const std::uint32_t most = automaton_->loops[string - 1].most;
    tokens_->add_plain(most == kNoLimit ? kNoLimit : most - first.count + 1, made.dense);
    made.trie = &tokens_->not_plain();
  }
  walk(*made.trie, 0, above, [&](std::uint32_t node, SetId set) {
    set_bits(made.trie->tokens(node), made.dense);
    if (stacks_.at_bottom(set) && made.trie->has_children(node)) {
      made.escapes.push_back(node);
    }
  });
  return made;
}

MaskCache::Partial MaskCache::compressed(Partial partial) const {
  std::size_t tokens = 0;
  for (const std::uint64_t word : partial.dense) {
    tokens += static_cast<std::size_t>(std::popcount(word));
  }
  if (tokens > partial.dense.size() / 2) {
    return partial;
  }
  for (std::size_t word = 0; word < partial.dense.size(); ++word) {
    for (std::uint64_t bits = partial.dense[word]; bits != 0; bits &= bits - 1) {
      partial.sparse.push_back(static_cast<TokenId>(word * 64) + std::countr_zero(bits));
    }
  }
  partial.dense = {};
  return partial;
}

// Calls on_node(node, stacks) for all nodes beneath `from` that can be reached if `set` are the
// stacks at `from`.
template <class OnNode>
void MaskCache::walk(const TokenTrie& trie, std::uint32_t from, SetId set, OnNode on_node) {
  if (set == kNoStacks) {
    return;
  }
  path_[trie.node(from).depth] = set;
  const std::uint32_t end = trie.node(from).skip;
  for (std::uint32_t n = from + 1; n < end; ++walked_) {
    const TokenTrie::Node& node = trie.node(n);
    const SetId next = stacks_.step(path_[node.depth - 1U], node.byte);
    if (next == kNoStacks) {
      n = node.skip;
      continue;
    }
    path_[node.depth] = next;
    on_node(n, next);
    ++n;
  }
}

}  // namespace protean::grammar
