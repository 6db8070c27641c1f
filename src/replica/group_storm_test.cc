// Lets groups of real devices form and part at random moments under a load whose answers are known
// (AMOEBA section 3, KunServe section 4).

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/repetitions_for_test.h"
#include "cost/pages.h"
#include "replica/load_scene_for_test.h"

namespace protean {
namespace {

using Groups = std::vector<std::vector<ReplicaId>>;

Groups groups_of(int replicas, int each) {
  Groups groups;
  for (int replica = 0; replica < replicas; ++replica) {
    if (replica % each == 0) {
      groups.emplace_back();
    }
    groups.back().push_back(ReplicaId{replica});
  }
  return groups;
}

Groups groups_of(const GroupsStatus& status) {
  Groups groups;
  for (const GroupStatus& group : status.groups) {
    groups.push_back(group.replicas);
  }
  return groups;
}

// Returns how often a test lets groups form or part: as the environment says, else fewer times in
// an instrumented build, but through all sizes.
std::int64_t changes_wanted(std::int64_t plain) {
  if (const char* const asked = std::getenv("PROTEAN_CHANGES")) {
    return std::atoll(asked);
  }
  return instrumented() ? std::min<std::int64_t>(plain, 6) : plain;
}

// Says after which batches of outputs the next wish comes: a random time after the one before it
// has come true. One wish of four is to be taken back on its way there.
class WishTimes {
 public:
  bool next(bool came_true) {
    ++batches_;
    if (came_true ? rest_-- > 0 : batches_ < taken_back_) {
      return false;
    }
    longest_ = came_true ? std::max(longest_, batches_) : longest_;
    batches_ = 0;
    rest_ = below(20);
    taken_back_ = below(4) == 0 ? below(longest_) : 10 * longest_;
    return true;
  }

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }

  std::mt19937 random_{7};
  int batches_ = 0;     // since the latest wish
  int rest_ = 0;        // batches until the next one, once it has come true
  int taken_back_ = 0;  // batches after which it is taken back
  int longest_ = 50;    // batches until a wish came true
};

struct GroupStorm : ReplicasTest {
  GroupStorm() {
    spec.attention = {.heads = 4, .kv_heads = 4, .head_dim = 16};
    kv_cache_memory = "1MiB";
    write_hf_checkpoint(directory.path(), spec, {});
  }

  struct Kept {
    const char* weights;
    const char* kv;
  };
  static constexpr Kept kKept[] = {
      {"bf16", "bf16"}, {"bf16", "int8"}, {"w8", "bf16"}, {"w8", "int8"}};
  // Instrumented builds try each precision and each kind of KV once.
  static std::vector<Kept> kept_to_try() {
    return instrumented() ? std::vector<Kept>{kKept[0], kKept[3]}
                          : std::vector<Kept>(std::begin(kKept), std::end(kKept));
  }
  static constexpr std::uint64_t kMostRequests = 100'000;

  GroupBy by = GroupBy::kShards;
  std::vector<ReplicaId> must_form;  // homes, by their first replicas, that become one in the end
  bool kv_shrinks = false;           // for groups, and grows back when they have parted
  bool unequal = false;              // the first replica has memory for half of the others' KV

  ReplicaOptions options_of(int replicas, const Kept& kept) {
    dtype = kept.weights;
    kv_cache_dtype = kept.kv;
    most_tensor = 4;
    ReplicaOptions options = groupable(replicas);
    options.router = RouterPolicy::kRoundRobin;
    return options;
  }

  // Asks for one group size after the other until so many changes have ended well and what must
  // form has formed, and then for replicas alone.
  void storm(const Kept& kept, const std::vector<int>& sizes, std::int64_t changes) {
    SCOPED_TRACE(std::string(kept.weights) + " with KV at " + kept.kv);
    const int replicas = *std::max_element(sizes.begin(), sizes.end());
    ReplicaOptions options = options_of(replicas, kept);
    options.holds_at_once = 2;
    if (unequal) {
      take_from_first(options, replicas);
    }
    FleetLoad load(options, *this);
    std::shared_ptr<const GroupsStatus> status;
    std::map<ReplicaId, KvForm> kv;
    std::int64_t resizes = 0;
    std::size_t next = 0;
    Groups wanted;
    const auto want = [&](int each) {
      wanted = groups_of(replicas, each);
      load.inbox.push({steady_now_ns(), WantGroups{1, {.groups = wanted, .by = by}}});
    };
    bool ends = false;
    bool whole = false;  // each replica has all its KV
    WishTimes times;
    load.run(
        kMostRequests, 3 * static_cast<std::uint64_t>(replicas), [&](const OutputBatch& batch) {
          for (const Output& output : batch.outputs) {
            const auto* answer = std::get_if<GroupsAnswered>(&output);
            if (answer != nullptr && !answer->changes.ok()) {
              load.enough();
              FAIL() << answer->changes.error().message;
            }
          }
          status = batch.groups ? batch.groups : status;
          if (batch.form) {
            expect_pages(*batch.form, options);
            kv[batch.replica] = batch.form->form.kv;
            resizes += batch.form->kv_resizes_total;
          }
          const bool there = !status || (status->running.empty() && groups_of(*status) == wanted);
          whole = std::ranges::all_of(kv, [&](const auto& one) {
            return one.second == sizing_of(options.sizing, one.first.value).form.kv;
          });
          if (ends) {
            if (there && whole) {
              load.enough();
            }
          } else if (times.next(there)) {
            ends = there && status && status->together_total + status->apart_total >= changes &&
                   has_formed(*status);
            want(ends ? 1 : sizes[next++ % sizes.size()]);
          }
        });
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_NE(status, nullptr);
    EXPECT_GE(status->together_total + status->apart_total, changes);
    EXPECT_TRUE(has_formed(*status));
    expect_at_rest(*status, options);
    EXPECT_TRUE(whole) << "KV does not come back";
    EXPECT_TRUE(resizes > 0 || !kv_shrinks);
    FleetLoad one(options_of(1, kept), *this);
    one.run(load.answers.size(), 16);
    expect_same(load.answers, one.answers);
  }

  void take_from_first(ReplicaOptions& options, int replicas) const {
    Sizing& sizing = options.sizing;
    const PageBudget& budget = sizing.budget;
    Form& form = sizing.form;
    sizing.unequal.assign(static_cast<std::size_t>(replicas),
                          {0, form.kv.blocks, sizing.largest_kv_blocks});
    const std::int64_t lacking = (budget.pages - weight_pages(spec, form, budget.page_bytes)) / 2;
    form.group.front().lacking_pages = lacking;
    form.kv.blocks = kv_blocks_that_fit(spec, form, budget.pages, budget.page_bytes);
    sizing.unequal.front() = {lacking, form.kv.blocks, form.kv.blocks};
    options.morph->start = options.morph->bounds.full = form;
  }

  // Makes the weights that a stage drops larger than the KV that it takes of each of its layers.
  void widen() {
    spec.layers = 4;
    spec.ffn = 2048;
    write_hf_checkpoint(directory.path(), spec, {});
  }

  bool has_formed(const GroupsStatus& status) const {
    return must_form.empty() || std::ranges::any_of(status.history, [&](const auto& record) {
             return record.together && record.succeeded() && record.replicas == must_form;
           });
  }

  // What a form does not need is free.
  void expect_pages(const FormStatus& status, const ReplicaOptions& options) const {
    if (status.form == status.wanted) {
      EXPECT_EQ(form_pages(spec, status.form, status.pages.page_bytes) + status.pages.free,
                options.sizing.budget.pages);
    }
  }
  // Each replica has what it began with, and no change failed: a page that was lost would be
  // lacking the next time, since no page is free.
  void expect_at_rest(const GroupsStatus& status, const ReplicaOptions& options) {
    for (const GroupStatus& group : status.groups) {
      EXPECT_EQ(group.form->group.front().layers, options.sizing.form.group.front().layers);
    }
    std::int64_t kv_bytes = 0;
    for (const RegroupRecord& record : status.history) {
      kv_bytes += record.kv_bytes;
      EXPECT_TRUE(record.failure.empty() || record.failure.starts_with("turned back"))
          << record.failure;
    }
    EXPECT_GT(kv_bytes, 0);
    EXPECT_TRUE(status.failed.empty());
  }
};

// All storms together have more than 200 changes in a plain build.
TEST_F(GroupStorm, TwoReplicasBecomeOneAndPartManyTimes) {
  for (const Kept& kept : kept_to_try()) {
    storm(kept, {2, 1}, changes_wanted(12));
  }
}

TEST_F(GroupStorm, FourReplicasBecomeOneInTwoStepsAndPartManyTimes) {
  for (const Kept& kept : kept_to_try()) {
    storm(kept, {2, 4, 2, 1}, changes_wanted(12));
  }
}

TEST_F(GroupStorm, FourReplicasBecomeOneAtOnceAndPartManyTimes) {
  for (const Kept& kept : kept_to_try()) {
    storm(kept, {4, 1}, changes_wanted(12));
  }
}

TEST_F(GroupStorm, TwoReplicasOfTwoDevicesDivideLayersAndPartManyTimes) {
  tensor = 2;
  by = GroupBy::kLayers;
  widen();
  storm(kKept[0], {2, 1}, changes_wanted(24));
  storm(kKept[3], {2, 1}, changes_wanted(24));
}

// Pipelines of two stages become one of four, and part into two again.
TEST_F(GroupStorm, PipelinesOfTwoReplicasBecomeOneAndPartManyTimes) {
  kv_cache_memory = "2MiB";
  by = GroupBy::kLayers;
  widen();
  storm(kKept[1], {2, 4, 2, 1}, changes_wanted(24));
}

TEST_F(GroupStorm, FourReplicasDivideLayersAndPartManyTimes) {
  kv_cache_memory = "2MiB";
  by = GroupBy::kLayers;
  widen();
  storm(kKept[1], {2, 1, 4, 1}, changes_wanted(24));
}

// A pipeline of two stages and a replica become one of three stages, and part into the two again.
TEST_F(GroupStorm, APipelineAndAReplicaBecomeOneAndPartManyTimes) {
  kv_cache_memory = "2MiB";
  by = GroupBy::kLayers;
  widen();
  spec.layers = 6;
  write_hf_checkpoint(directory.path(), spec, {});
  must_form = {ReplicaId{0}, ReplicaId{2}};
  storm(kKept[1], {2, 3, 2, 1}, changes_wanted(12));
}

// Stages have 3 and 5 layers: KV of both replicas does not fit next to half of the layers on the
// device of less memory.
TEST_F(GroupStorm, ReplicasOfUnequalMemoryDivideLayersByItAndPartManyTimes) {
  kv_cache_memory = "6MiB";
  by = GroupBy::kLayers;
  unequal = true;
  spec.layers = 8;
  spec.ffn = 512;
  write_hf_checkpoint(directory.path(), spec, {});
  must_form = {ReplicaId{0}, ReplicaId{1}};
  storm(kKept[0], {2, 1}, changes_wanted(8));
}

// The weights that a stage drops are smaller than the KV that it takes of each of its layers.
TEST_F(GroupStorm, KvShrinksSoThatReplicasOfSmallWeightsDivideLayers) {
  by = GroupBy::kLayers;
  kv_shrinks = true;
  storm(kKept[1], {2, 1}, changes_wanted(8));
}

// Two pipelines would have to shrink what KV they have, so they part before four replicas become
// one.
TEST_F(GroupStorm, PipelinesOfSmallWeightsPartBeforeFourReplicasBecomeOne) {
  by = GroupBy::kLayers;
  kv_shrinks = true;
  kv_cache_memory = "2MiB";
  spec.layers = 4;
  write_hf_checkpoint(directory.path(), spec, {});
  storm(kKept[1], {2, 4}, changes_wanted(12));
}

TEST_F(GroupStorm, ReplicasKeepAttentionWeightsInGroups) {
  keeps_attention = true;
  storm({"w8", "int8"}, {2, 4, 2, 1}, changes_wanted(24));
}

}  // namespace
}  // namespace protean
