// Tests real replicas of unequal precisions that become a group.

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <variant>

#include "control/form_path.h"
#include "replica/load_scene_for_test.h"

namespace protean {
namespace {

struct GroupPrecision : ReplicasTest {
  GroupPrecision() {
    make_layers_divisible();
    kv_cache_dtype = "bf16";
    bf16 = groupable(2);
    FormBounds& bounds = bf16.morph->bounds;
    bounds.ladder.push_back(Precision::kW8);
    bf16.sizing.largest_kv_blocks = form_path(bounds).back().kv.blocks;
    dtype = "w8";
    w8 = groupable(1);
  }

  ReplicaOptions bf16;  // of two replicas
  ReplicaOptions w8;    // of one
};

// One replica is at w8, the other one comes to it while it serves.
TEST_F(GroupPrecision, ReplicasOfUnequalPrecisionsBecomeOneThatAnswersAtTheChosenOne) {
  constexpr std::uint64_t kMostRequests = 20'000;
  constexpr std::size_t kInGroup = 20;
  const Form& chosen = w8.sizing.form;
  for (const GroupBy by : {GroupBy::kShards, GroupBy::kLayers}) {
    FleetLoad load(bf16, *this);
    load.inbox.push(
        {steady_now_ns(),
         WantForm{1, {.layers = chosen.layer_precision, .embeddings = chosen.embeddings}},
         ReplicaId{1}});
    std::shared_ptr<const GroupsStatus> status;
    std::set<RequestId> in_group;
    bool asked = false;
    load.run(kMostRequests, 6, [&](const OutputBatch& batch) {
      const bool grouped = status && status->groups.size() == 1 && status->running.empty();
      for (const Output& output : batch.outputs) {
        if (const auto* accepted = std::get_if<Accepted>(&output); accepted && grouped) {
          in_group.insert(accepted->request);
        }
        const auto* answer = std::get_if<GroupsAnswered>(&output);
        const auto* form = std::get_if<WishAnswered>(&output);
        if ((answer && !answer->changes.ok()) || (form && !form->morph.ok())) {
          load.enough();
          FAIL() << (answer ? answer->changes.error().message : form->morph.error().message);
        }
      }
      status = batch.groups ? batch.groups : status;
      if (!asked && batch.form && batch.replica == ReplicaId{1} &&
          equally_precise(batch.form->form, chosen)) {
        asked = true;
        load.inbox.push(
            {steady_now_ns(), WantGroups{1, {.groups = {{ReplicaId{0}, ReplicaId{1}}}, .by = by}}});
      }
      if (in_group.size() >= kInGroup || (status && status->failures_total > 0)) {
        load.enough();
      }
    });
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_NE(status, nullptr);
    EXPECT_EQ(status->failures_total, 0) << status->history.back().failure;
    ASSERT_GE(in_group.size(), kInGroup);
    EXPECT_TRUE(equally_precise(*status->groups.front().form, chosen));
    FleetLoad one(w8, *this);
    one.run(load.answers.size(), 16);
    for (const RequestId id : in_group) {
      EXPECT_EQ(load.answers.at(id).tokens, one.answers.at(id).tokens) << "request " << id.value;
      EXPECT_EQ(load.answers.at(id).logprobs, one.answers.at(id).logprobs)
          << "request " << id.value;
    }
  }
}

}  // namespace
}  // namespace protean
