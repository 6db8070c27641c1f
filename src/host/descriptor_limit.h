#pragma once

namespace protean {

// Raises this process's limit of open files to the hard limit and returns how many of the wanted
// connections fit. Logs a warning if fewer do.
int clip_connections(int wanted);

}  // namespace protean
