// Tests models that are loaded in the form that an intent gave them before they slept.

#include "replica/resting.h"

#include <gtest/gtest.h>

#include "replica/load_scene_for_test.h"

namespace protean {
namespace {

struct RestingTest : ReplicasTest {
  RestingTest() {
    most_tensor = 1;
    opened = groupable(1);
    dtype = "w8";
    at_w8 = options_for({});
    FormBounds& bounds = opened.morph->bounds;
    bounds.ladder.push_back(Precision::kW8);
    opened.sizing.largest_kv_blocks = form_path(bounds).back().kv.blocks;
    Form form = opened.sizing.form;
    form.layer_precision = at_w8.sizing.form.layer_precision;
    form.embeddings = at_w8.sizing.form.embeddings;
    rest = {.layers = form.layer_precision,
            .embeddings = form.embeddings,
            .rest_pages = form_pages(spec, form, opened.sizing.budget.page_bytes)};
  }

  ReplicaOptions opened;  // at bf16
  ReplicaOptions at_w8;
  FormWish rest;  // at w8, with as much KV
};

TEST_F(RestingTest, AModelIsLoadedInItsFormOfQuietTimesAndAnswersAsOneOpenedInIt) {
  FleetLoad woken(resting_in(opened, rest), *this);
  int forms = 0;
  woken.run(20, 8, [&](const OutputBatch& batch) {
    if (batch.form != nullptr) {
      ++forms;
      EXPECT_EQ(batch.form->form.layer_precision, rest.layers);
      EXPECT_EQ(batch.form->form.kv.blocks, opened.sizing.form.kv.blocks);
      EXPECT_EQ(batch.form->pages.all, *rest.rest_pages);
    }
  });
  EXPECT_GT(forms, 0);
  FleetLoad known(at_w8, *this);
  known.run(20, 8);
  expect_same(woken.answers, known.answers);
}

TEST_F(RestingTest, FromThereItGoesBackToTheFormInWhichItWasOpened) {
  constexpr std::uint64_t kMostRequests = 20'000;
  const Form& full = opened.sizing.form;
  FleetLoad woken(resting_in(opened, rest), *this);
  woken.inbox.push({steady_now_ns(),
                    WantForm{1,
                             {.layers = full.layer_precision,
                              .embeddings = full.embeddings,
                              .rest_pages = opened.sizing.budget.pages}},
                    ReplicaId{0}});
  std::shared_ptr<const FormStatus> last;
  woken.run(kMostRequests, 8, [&](const OutputBatch& batch) {
    last = batch.form != nullptr ? batch.form : last;
    if (last != nullptr && last->form == full) {
      woken.enough();
    }
  });
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(last->form, full);
  EXPECT_EQ(last->pages.all, opened.sizing.budget.pages);
}

}  // namespace
}  // namespace protean
