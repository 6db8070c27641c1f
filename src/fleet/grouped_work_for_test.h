#pragma once

#include <map>
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
