#!/usr/bin/env python3
"""Compiles every header and every source alone: alone.py

A build compiles the files of a module together, so a file may use a name that only its neighbour includes. This reads each
source by itself that a build does not, and each header that no source of the same name includes first. Nothing is generated.

Headers take most of the time. Files that reach the same ones share a precompiled header of exactly those, in two levels: large
third-party headers, and on top of them what else a group of files has in common. The source of a header proves that the header
is complete, so only what that header reaches itself may come before it.
"""

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "bench")

# What most files reach of the standard library; a file that reaches all of it gets it precompiled.
STANDARD = ["algorithm", "functional", "memory", "optional", "span", "string", "variant", "vector"]

# A file that includes a header of this pattern gets the headers behind it precompiled.
THIRD_PARTY = {
    r"gtest/": ["gtest/gtest.h"],
    r"boost/json": ["boost/json.hpp"],
    r"boost/(asio|beast)": ["boost/asio.hpp", "boost/asio/ssl.hpp", "boost/beast/http.hpp"],
    r"CLI/": ["CLI/CLI.hpp"],
    r"(fmt|spdlog)/": ["fmt/format.h"],
}
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-Wno-unused-function",
         "-Wno-unused-const-variable", "-Wno-pragma-once-outside-header", "-Isrc", "-I.", "-isystem", "/usr/include/eigen3",
         "-DBOOST_ASIO_SEPARATE_COMPILATION", "-DBOOST_BEAST_SEPARATE_COMPILATION", "-DBOOST_ASIO_NO_DEPRECATED",
         "-DBOOST_ASIO_NO_TS_EXECUTORS", "-DPROTEAN_VERSION=\"alone\""]
# Templates that headers use are instantiated once with them, not again for each file.
PRECOMPILE = ["-fpch-instantiate-templates", "-x", "c++-header"]
# About what Clang takes for a third-party header, for a line of the project's, and for a precompiled header more.
HEADER_S, LINE_S, PRECOMPILED_S = 0.01, 0.0002, 0.3

INCLUDE = re.compile(r'^#include ([<"])([^>"]+)[>"]', re.MULTILINE)


@lru_cache(maxsize=None)
def includes(path):
    """What a file includes: its own project's files, and third-party headers."""
    own, foreign = [], []
    for bracket, name in INCLUDE.findall(path.read_text()):
        found = [root / name for root in (ROOT / "src", ROOT) if (root / name).is_file()] if bracket == '"' else []
        (own if found else foreign).append(found[0] if found else name)
    return own, foreign


@lru_cache(maxsize=None)
def reached(path):
    """Every header that a file includes, directly or through its own project: the project's files, and third-party names."""
    files, names, todo = set(), set(), [path]
    while todo:
        own, foreign = includes(todo.pop())
        names.update(foreign)
        todo += set(own) - files
        files.update(own)
    return files, names


def proved(path):
    """The header that a source includes first and is named after, or the file itself."""
    own = includes(path)[0]
    return own[0] if path.suffix == ".cc" and own[:1] == [path.with_suffix(".h")] else path


def third_party(path):
    """The large headers to precompile for a file."""
    names = reached(proved(path))[1]
    standard = STANDARD if names.issuperset(STANDARD) else []
    return (*standard, *(header for pattern, headers in THIRD_PARTY.items()
                         if any(re.match(pattern, name) for name in names) for header in headers))


def sharable(path):
    """What else may be precompiled for a file, as it is written in an include. Highway's headers depend on their order."""
    files, names = reached(proved(path))
    if "hwy/foreach_target.h" in reached(path)[1]:
        return frozenset()
    return frozenset({f"<{name}>" for name in names} |
                     {f'"{spelled(file)}"' for file in files - {path} if not file.name.endswith("-inl.h")})


def spelled(path):
    return path.relative_to(ROOT / "src" if ROOT / "src" in path.parents else ROOT)


@lru_cache(maxsize=None)
def seconds(header):
    if header.startswith("<"):
        return HEADER_S
    path = next(path for path in (ROOT / "src" / header[1:-1], ROOT / header[1:-1]) if path.is_file())
    return LINE_S * path.read_text().count("\n")


def saved(headers, count):
    """The time that so many files save with such a precompiled header."""
    return max(0, (count - 1) * sum(map(seconds, headers)) - PRECOMPILED_S) if count > 1 else 0


def shared(paths):
    """Divides files into (headers in common, files), such that much time is saved: joins two groups while that saves more."""
    groups = {i: (sharable(path), [path]) for i, path in enumerate(paths)}

    def gain(i, j):
        (one, files), (other, more) = groups[i], groups[j]
        return saved(one & other, len(files) + len(more)) - saved(one, len(files)) - saved(other, len(more))

    gains = {(i, j): gain(i, j) for i in groups for j in range(i)}
    while gains and max(gains.values()) > 0:
        i, j = max(gains, key=gains.get)
        groups[i] = (groups[i][0] & groups[j][0], groups[i][1] + groups.pop(j)[1])
        gains = {pair: gain(*pair) if i in pair else value for pair, value in gains.items() if j not in pair}
    return [(headers if saved(headers, len(files)) else frozenset(), files) for headers, files in groups.values()]


def built_alone(path):
    """True for a source that the builds of .ci/run compile by itself: a fuzzer, a benchmark, or one that Highway reads again."""
    return path.suffix == ".cc" and (path.name.endswith("_fuzz.cc") or ROOT / "bench" in path.parents or
                                     "hwy/foreach_target.h" in includes(path)[1])


def files_to_read():
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))
             if path.suffix in (".h", ".cc") and "build" not in path.parts]
    # Highway reads a -inl.h once for each instruction set, inside its own macros; it cannot be compiled alone.
    files = [path for path in files if not path.name.endswith("-inl.h")]
    first = {proved(path) for path in files if path.suffix == ".cc"}
    return [path for path in files if (path.suffix == ".cc" or path not in first) and not built_alone(path)]


def clang(*arguments):
    """What Clang says against it, or an empty text."""
    done = subprocess.run(["clang++", *FLAGS, *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    return done.stdout if done.returncode else ""


def main():
    files = files_to_read()
    by_third_party = {}
    for path in files:
        by_third_party.setdefault(third_party(path), []).append(path)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:

        def precompile(name, headers, use):
            """What Clang says against the headers, and the options for a file that uses them."""
            if not headers:
                return "", use
            source = Path(folder, f"{name}.h")
            source.write_text("".join(f"#include {header}\n" for header in headers))
            return clang(*use, *PRECOMPILE, str(source), "-o", f"{source}.pch"), ["-include-pch", f"{source}.pch"]

        def read(path, use):
            return clang("-fsyntax-only", *use, "-x", "c++", str(path.relative_to(ROOT)))

        large = list(pool.map(lambda item: precompile(f"large{item[0]}", [f"<{name}>" for name in item[1]], []),
                              enumerate(by_third_party)))
        groups = [(use, sorted(headers), paths) for (_, use), some in zip(large, by_third_party.values())
                  for headers, paths in shared(some)]
        common = list(pool.map(lambda item: precompile(f"common{item[0]}", item[1][1], item[1][0]), enumerate(groups)))
        said = [text for text, _ in large + common]
        said += pool.map(lambda item: read(*item), [(path, use) for (_, _, paths), (_, use) in zip(groups, common)
                                                    for path in paths])
    findings = [text for text in said if text]
    print("\n".join([*findings, f"compiled alone: {len(files)} files, {len(findings)} that do not compile"]))
    return bool(findings) or not files


if __name__ == "__main__":
    sys.exit(main())
