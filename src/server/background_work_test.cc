#include "server/background_work.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>

namespace protean {
namespace {

TEST(BackgroundWork, LetsGoOfAJobBeforeItsResultIsPosted) {
  auto kept = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = kept;
  std::promise<bool> gone;
  BackgroundWork work([&](const BackgroundWork::Done&) { gone.set_value(watched.expired()); });
  ASSERT_TRUE(work.try_run([kept = std::move(kept)] { return [] {}; }));
  EXPECT_TRUE(gone.get_future().get());
}

}  // namespace
}  // namespace protean
