#include "grammar/regex_nfa.h"

#include <array>

namespace protean::grammar {

namespace {

using NodeId = std::uint32_t;

// Thompson's construction. Anchors are jumps that are taken only at the text's begin or end.
struct Nfa {
  struct Jump {
    enum class Kind { kAlways, kTextBegin, kTextEnd };
    Kind kind = Kind::kAlways;
    NodeId to = 0;
  };
  struct Node {
    std::vector<Language::Edge> edges;
    std::vector<Jump> jumps;
  };

  bool full() const { return nodes.size() > Language::kMaxStates; }
  NodeId node() {
    nodes.emplace_back();
    return static_cast<NodeId>(nodes.size() - 1);
  }
  void jump(NodeId from, NodeId to, Jump::Kind kind = Jump::Kind::kAlways) {
    nodes[from].jumps.push_back({kind, to});
  }

  // Adds `part` from `from` on and returns the node at which it ends.
  NodeId add(const RegexNode& part, NodeId from) {
    if (full()) {
      return from;
    }
    switch (part.kind) {
      case RegexNode::Kind::kSequence:
        for (const RegexNode& child : part.parts) {
          from = add(child, from);
        }
        return from;
      case RegexNode::Kind::kAlternatives: {
        const NodeId end = node();
        for (const RegexNode& child : part.parts) {
          const NodeId begin = node();
          jump(from, begin);
          jump(add(child, begin), end);
        }
        return end;
      }
      case RegexNode::Kind::kRepeat:
        return add_repeat(part, from);
      case RegexNode::Kind::kCharacter: {
        const NodeId end = node();
        nodes[from].edges.push_back({part.characters, end});
        return end;
      }
      case RegexNode::Kind::kTextBegin:
      case RegexNode::Kind::kTextEnd: {
        const NodeId end = node();
        jump(from, end,
             part.kind == RegexNode::Kind::kTextBegin ? Jump::Kind::kTextBegin
                                                      : Jump::Kind::kTextEnd);
        return end;
      }
    }
    return from;
  }

  NodeId add_repeat(const RegexNode& part, NodeId from) {
    const RegexNode& body = part.parts.front();
    const std::size_t before = nodes.size();
    for (std::uint32_t i = 0; i < part.loop.least && !full(); ++i) {
      from = add(body, from);
      if (nodes.size() == before) {
        return from;  // the body is empty
      }
    }
    const NodeId end = node();
    if (part.loop.most == kNoLimit) {
      const NodeId begin = node();
      jump(from, begin);
      jump(begin, end);
      jump(add(body, begin), begin);
      return end;
    }
    for (std::uint32_t i = part.loop.least; i < part.loop.most && !full(); ++i) {
      jump(from, end);
      const std::size_t size = nodes.size();
      from = add(body, from);
      if (nodes.size() == size) {
        break;
      }
    }
    jump(from, end);
    return end;
  }

  std::vector<Node> nodes;
};

// The place in the text at which a node is. `$` leads to the phases that read nothing more.
enum Phase : std::uint32_t { kAtBegin, kWithin, kAtEnd, kEmptyText, kPhases };

Language with_phases(const Nfa& nfa, NodeId accept) {
  std::vector<std::array<std::uint32_t, kPhases>> number(nfa.nodes.size(), {0, 0, 0, 0});
  std::vector<std::pair<NodeId, Phase>> found{{0, kAtBegin}};
  std::vector<Language::State> states;
  const auto find = [&](NodeId node, Phase phase) {
    if (number[node][phase] == 0 && !(node == 0 && phase == kAtBegin)) {
      number[node][phase] = static_cast<std::uint32_t>(found.size());
      found.emplace_back(node, phase);
    }
    return number[node][phase];
  };
  for (std::size_t at = 0; at < found.size(); ++at) {
    const NodeId node = found[at].first;
    const Phase phase = found[at].second;
    Language::State state;
    state.final = node == accept;
    for (const Nfa::Jump& jump : nfa.nodes[node].jumps) {
      switch (jump.kind) {
        case Nfa::Jump::Kind::kAlways:
          state.jumps.push_back(find(jump.to, phase));
          break;
        case Nfa::Jump::Kind::kTextBegin:
          if (phase == kAtBegin || phase == kEmptyText) {
            state.jumps.push_back(find(jump.to, phase));
          }
          break;
        case Nfa::Jump::Kind::kTextEnd:
          state.jumps.push_back(
              find(jump.to, phase == kAtBegin || phase == kEmptyText ? kEmptyText : kAtEnd));
          break;
      }
    }
    if (phase == kAtBegin || phase == kWithin) {
      for (const Language::Edge& edge : nfa.nodes[node].edges) {
        state.edges.push_back({edge.on, find(edge.to, kWithin)});
      }
    }
    states.push_back(std::move(state));
  }
  return Language(std::move(states));
}

}  // namespace

Result<Language> regex_language(const RegexNode& node, bool search) {
  Nfa nfa;
  NodeId begin = nfa.node();
  if (search) {
    nfa.nodes[begin].edges.push_back({CharacterClass::all(), begin});
    const NodeId match = nfa.node();
    nfa.jump(begin, match);
    begin = match;
  }
  NodeId end = nfa.add(node, begin);
  if (search) {
    const NodeId rest = nfa.node();
    nfa.jump(end, rest);
    nfa.nodes[rest].edges.push_back({CharacterClass::all(), rest});
    end = rest;
  }
  if (nfa.full()) {
    return make_error(ErrorCode::kExhausted,
                      "a pattern needs more than {} states; its repeats are too many",
                      Language::kMaxStates);
  }
  return with_phases(nfa, end);
}

}  // namespace protean::grammar
