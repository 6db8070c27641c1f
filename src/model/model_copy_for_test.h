#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "device/cpu/team.h"
#include "model/calibration.h"
#include "model/checkpoint.h"
#include "model/layer_tensors.h"

// What tests of commands that write a changed copy of a model share.

namespace protean {

// Sequences of random tokens for calibration.
inline std::vector<std::vector<TokenId>> random_text(int vocab) {
  std::mt19937 random(3);
  std::vector<std::vector<TokenId>> text;
  for (const std::size_t length : {60U, 1U, 47U, 80U}) {
    text.emplace_back(length);
    for (TokenId& token : text.back()) {
      token = static_cast<TokenId>(random() % static_cast<unsigned>(vocab));
    }
  }
  return text;
}

// Opens a model; null, with a failure of the test, if it cannot be.
inline std::unique_ptr<Checkpoint> opened(const std::filesystem::path& path) {
  auto checkpoint = open_checkpoint(path);
  EXPECT_TRUE(checkpoint.ok()) << (checkpoint.ok() ? "" : checkpoint.error().message);
  return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
}

// Returns the residual stream of the text after all layers of a model.
inline std::vector<float> outputs_of(cpu::Team& team, const Checkpoint& checkpoint) {
  auto calibration = Calibration::create(team, checkpoint, random_text(checkpoint.spec().vocab));
  EXPECT_TRUE(calibration.ok());
  for (int layer = 0; layer < checkpoint.spec().layers; ++layer) {
    EXPECT_TRUE(calibration->advance(LayerTensors(checkpoint, layer)).ok());
  }
  return {calibration->residual().begin(), calibration->residual().end()};
}

}  // namespace protean
