#pragma once

namespace protean {

// Raises this process's limit of open files to what the system lets it have, and says how many of
// the wanted connections fit. Warns where that is fewer.
int clip_connections(int wanted);

}  // namespace protean
