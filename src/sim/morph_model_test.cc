#include "sim/morph_model.h"

#include <gtest/gtest.h>

#include <span>

#include "control/scene_for_test.h"
#include "cost/memory.h"

namespace protean {
namespace {

constexpr SwapComponent kSwap{0, Component::kMlp, Precision::kW4};

struct CopyScene {
  explicit CopyScene(const MorphCost& cost)
      : bounds(with_room(bounds_for_test(4, 0.4))),
        model({bounds.spec, bounds.budget, bounds.full}, cost, 1) {
    copy_us = static_cast<double>(component_bytes(bounds.spec, kSwap.component, kSwap.to)) /
              cost.copy_bytes_per_us;
    model.prepare(MorphId{1}, kSwap, 0);
  }
  TimeNs copy_ns(double times = 1) const {
    return std::llround(times * copy_us * static_cast<double>(kNsPerUs));
  }

  // Leaves pages for several variants at once.
  static FormBounds with_room(FormBounds bounds) {
    bounds.budget.pages *= 2;
    return bounds;
  }

  FormBounds bounds;
  MorphModel model;
  double copy_us = 0;
};

TEST(MorphModel, ACopyTakesItsBytesIfNoStepRuns) {
  CopyScene scene({.copy_bytes_per_us = 100});
  EXPECT_EQ(scene.model.copied_ns(5, 0), 5 + scene.copy_ns());
  scene.model.copy_until(5, 5 + scene.copy_ns(0.5), 0);
  const TimeNs half_ns = 5 + scene.copy_ns(0.5);
  EXPECT_NEAR(static_cast<double>(*scene.model.copied_ns(half_ns, 0)),
              static_cast<double>(5 + scene.copy_ns()), 2);
}

TEST(MorphModel, StepsLeaveACopyAShare) {
  CopyScene scene({.copy_bytes_per_us = 100, .share_during_steps = 0.25});
  EXPECT_EQ(scene.model.copied_ns(0, scene.copy_ns(100)), scene.copy_ns(4)) << "always in a step";
  // A step of twice the copy's time copies half of it; the rest is copied without steps.
  EXPECT_EQ(scene.model.copied_ns(0, scene.copy_ns(2)), scene.copy_ns(2.5));
  scene.model.copy_until(0, scene.copy_ns(2), scene.copy_ns(2));
  EXPECT_NEAR(static_cast<double>(*scene.model.copied_ns(scene.copy_ns(2), 0)),
              static_cast<double>(scene.copy_ns(2.5)), 2);
}

TEST(MorphModel, ACopyBetweenDevicesLeavesTheirLinkToTransfers) {
  CopyScene scene({.copy_bytes_per_us = 100, .share_during_steps = 0.5});
  const TimeNs all_ns = scene.copy_ns();
  const int link[] = {0};
  SharedLinks links;
  links.take(link, 0, all_ns);
  const BackgroundLinks shared{&links, link};
  EXPECT_EQ(scene.model.copied_ns(0, 0, shared), 2 * all_ns);
  EXPECT_NEAR(static_cast<double>(*scene.model.copied_ns(0, 9 * all_ns, shared)),
              static_cast<double>(3 * all_ns), 2)
      << "half of what is left during steps";
  scene.model.copy_until(0, all_ns, 0, shared);
  EXPECT_EQ(scene.model.copied_ns(all_ns, 0, shared), 2 * all_ns) << "nothing is copied yet";
}

// A copy over two links goes on while both are free, however often its progress is counted.
TEST(MorphModel, ACopyOverSeveralLinksWaitsForTransfersOnAny) {
  CopyScene scene({.copy_bytes_per_us = 100});
  const TimeNs all_ns = scene.copy_ns();
  const int both[] = {0, 1};
  SharedLinks links;
  links.take(std::span(both).first(1), 0, all_ns);
  links.take(std::span(both).last(1), all_ns, all_ns);
  const BackgroundLinks shared{&links, both};
  EXPECT_EQ(scene.model.copied_ns(0, 0, shared), 3 * all_ns);
  for (const TimeNs at_ns : {all_ns / 2, all_ns, 3 * all_ns / 2}) {
    scene.model.copy_until(at_ns - all_ns / 2, at_ns, 0, shared);
    EXPECT_EQ(scene.model.copied_ns(at_ns, 0, shared), 3 * all_ns);
  }
}

TEST(MorphModel, CopiesWaitForOneAnotherAndAnAbortedOneForNone) {
  CopyScene scene({.copy_bytes_per_us = 100});
  scene.model.prepare(MorphId{2}, SwapComponent{1, Component::kMlp, Precision::kW4}, 0);
  scene.model.abort(MorphId{1});
  EXPECT_EQ(scene.model.copied_ns(0, 0), scene.copy_ns());
  EXPECT_EQ(scene.model.take_copied().id, MorphId{2});
  EXPECT_FALSE(scene.model.copying());
  EXPECT_FALSE(scene.model.copied_ns(0, 0).has_value());
}

}  // namespace
}  // namespace protean
