// The pages of a program that is built with -DPROTEAN_WEB=OFF: none.
#include "server/page/page_assets.h"

namespace protean {

std::span<const PageAsset> page_assets() {
  return {};
}

}  // namespace protean
