#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "contract/form.h"
#include "contract/home_blocks.h"
#include "contract/morph.h"
#include "contract/step.h"
#include "fleet/token_kv_for_test.h"
#include "ports/event.h"

namespace protean {

// What GroupedDevices have in their queues, and what they hold.
struct GroupedWork {
  struct Commit {
    MorphId id;
  };
  struct Joint {
    std::vector<StepPlan> plans;
    std::vector<ReplicaId> homes;
  };
  struct Keep {
    std::vector<std::vector<BlockId>> live;
  };
  enum class Turn { kJoin, kUnify, kDivide, kPart };
  struct Change {
    Turn turn = Turn::kJoin;
    std::vector<ReplicaId> replicas;
    std::uint64_t number = 0;  // in the order in which all were asked for
  };
  // A step that was given up, of which some devices may still tell nonsense. Without plans, any
  // other work that was given up.
  struct Lost {
    std::vector<std::pair<ReplicaId, StepId>> plans;
  };
  struct CopyIn {
    CopyId id;
    ReplicaId from;
    std::vector<BlockMove> blocks;
  };
  using Work =
      std::variant<StepPlan, Joint, Commit, Keep, std::vector<BlockMove>, Change, Lost, CopyIn>;

  // Returns the number of the first change in a queue by which a replica leaves a group, if it was
  // asked for before another one.
  static std::optional<std::uint64_t> parting(const std::deque<Work>& queue, ReplicaId replica,
                                              std::uint64_t before) {
    for (const Work& work : queue) {
      const auto* change = std::get_if<Change>(&work);
      if (change != nullptr && change->turn == Turn::kPart && change->number < before &&
          std::ranges::find(change->replicas, replica) != change->replicas.end()) {
        return change->number;
      }
    }
    return std::nullopt;
  }
  // Adds and removes the groups that queued changes join and part, the innermost group first.
  static void follow(const std::deque<Work>& queue, std::vector<std::vector<ReplicaId>>& groups) {
    for (const Work& work : queue) {
      const auto* change = std::get_if<Change>(&work);
      if (change != nullptr && change->turn == Turn::kJoin) {
        groups.push_back(change->replicas);
      } else if (change != nullptr && change->turn == Turn::kPart) {
        groups.pop_back();
      }
    }
  }
  // Returns true unless the work comes after a change.
  static bool precedes(const Work& work, const Change& change) {
    const auto* other = std::get_if<Change>(&work);
    return other == nullptr || other->number < change.number;
  }

  struct Home {
    TokenKv kv;
    Form form;
  };
  struct Prepared {
    ReplicaId replica;
    MorphStep step;
    std::set<ReplicaId> devices;  // that it concerns
    bool ready = false;
  };
  struct Group {
    std::vector<ReplicaId> homes;
    std::vector<Home> parts;  // of unified homes, for their forms
    Form form;
    bool unified = false;
    std::vector<std::vector<BlockId>> live;
  };

  static std::vector<Form> forms_of(const std::map<ReplicaId, Home>& homes,
                                    const std::vector<ReplicaId>& replicas) {
    std::vector<Form> forms;
    for (const ReplicaId replica : replicas) {
      forms.push_back(homes.at(replica).form);
    }
    return forms;
  }
  static HomeBlocks blocks_of(const std::vector<Home>& parts) {
    std::vector<std::int64_t> each;
    for (const Home& part : parts) {
      each.push_back(part.form.kv.blocks);
    }
    return HomeBlocks(std::move(each));
  }
};

}  // namespace protean
