#include "control/policy_options.h"

#include <gtest/gtest.h>

#include "control/scene_for_test.h"

namespace protean {
namespace {

constexpr int kLayers = 4;

// Layer 2 loses most at w4, and its MLP more than its attention.
std::vector<LayerLoss> measured() {
  return {{0.001, 0.002}, {0.003, 0.004}, {0.01, 0.02}, {0.005, 0.006}};
}

Form lowered(const FormBounds& bounds, int layer, Precision precision) {
  Form form = bounds.full;
  form.layer_precision[static_cast<std::size_t>(layer)] = {precision, precision};
  return form;
}

TEST(QualityLoss, AddsUpWhatEachHalfLoses) {
  const FormBounds bounds = bounds_for_test(kLayers);
  QualityLoss loss = typical_loss();
  set_measured(Precision::kW4, Precision::kW4, measured(), bounds.spec, loss);
  EXPECT_EQ(kl_nats(loss, bounds, bounds.full), 0);
  EXPECT_DOUBLE_EQ(kl_nats(loss, bounds, lowered(bounds, 2, Precision::kW4)), 0.03);
  Form form = lowered(bounds, 0, Precision::kW4);
  form.layer_precision[2].mlp = Precision::kW4;
  EXPECT_DOUBLE_EQ(kl_nats(loss, bounds, form), 0.003 + 0.02);
}

TEST(QualityLoss, IsTypicalWhereNothingWasMeasured) {
  const FormBounds bounds = bounds_for_test(kLayers);
  QualityLoss loss = typical_loss();
  set_measured(Precision::kW4, Precision::kW4, measured(), bounds.spec, loss);
  const double all = typical_loss().layers[index_of(Precision::kW8)];
  EXPECT_NEAR(kl_nats(loss, bounds, lowered(bounds, 2, Precision::kW8)), all / kLayers, 1e-12);
}

TEST(QualityLoss, FewerBitsNeverLoseLess) {
  const FormBounds bounds = bounds_for_test(kLayers);
  QualityLoss loss = typical_loss();
  const std::vector<LayerLoss> none(kLayers);
  set_measured(Precision::kW4, Precision::kW4, none, bounds.spec, loss);
  EXPECT_GT(kl_nats(loss, bounds, lowered(bounds, 1, Precision::kW8)), 0);
  EXPECT_EQ(kl_nats(loss, bounds, lowered(bounds, 1, Precision::kW4)),
            kl_nats(loss, bounds, lowered(bounds, 1, Precision::kW8)));
}

TEST(QualityLoss, ARoundingThatWasNotMeasuredLosesInAdditionWhatIsTypical) {
  const FormBounds bounds = bounds_for_test(kLayers);
  QualityLoss loss = typical_loss();
  const std::vector<LayerLoss> none(kLayers);
  set_measured(Precision::kW8A8, Precision::kW8, none, bounds.spec, loss);
  const double rounding = typical_loss().layers[index_of(Precision::kW8A8)] -
                          typical_loss().layers[index_of(Precision::kW8)];
  ASSERT_GT(rounding, 0);
  EXPECT_NEAR(kl_nats(loss, bounds, lowered(bounds, 1, Precision::kW8A8)), rounding / kLayers,
              1e-12);
}

}  // namespace
}  // namespace protean
