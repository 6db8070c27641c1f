#!/usr/bin/env python3
"""Compiles every header and every source alone: alone.py

A build compiles the files of a module together, so a file may use a name that only its neighbour includes. This reads each
source by itself, and each header that no source of the same name includes first. Nothing is generated.

Other people's headers take most of the time. Files that reach the same ones share a precompiled header of exactly those.
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
INCLUDE = re.compile(r'^#include ([<"])([^>"]+)[>"]', re.MULTILINE)


@lru_cache(maxsize=None)
def includes(path):
    """What a file includes: its own project's files, and third-party headers."""
    own, foreign = [], []
    for bracket, name in INCLUDE.findall(path.read_text()):
        found = [root / name for root in (ROOT / "src", ROOT) if (root / name).is_file()] if bracket == '"' else []
        (own if found else foreign).append(found[0] if found else name)
    return own, foreign


def reached(path):
    """Every third-party header that a file includes, directly or through its own project."""
    seen, names, todo = set(), set(), [path]
    while todo:
        current = todo.pop()
        if current not in seen:
            seen.add(current)
            own, foreign = includes(current)
            names.update(foreign)
            todo += own
    return names


def precompiled(path):
    """The headers to precompile for a file."""
    names = reached(path)
    standard = STANDARD if names.issuperset(STANDARD) else []
    return (*standard, *(header for pattern, headers in THIRD_PARTY.items()
                         if any(re.match(pattern, name) for name in names) for header in headers))


def files_to_read():
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))
             if path.suffix in (".h", ".cc") and "build" not in path.parts]
    # Highway reads a -inl.h once for each instruction set, inside its own macros; it cannot be compiled alone.
    files = [path for path in files if not path.name.endswith("-inl.h")]
    first = {own[0] for own in (includes(path)[0] for path in files if path.suffix == ".cc") if own}
    return [path for path in files if path.suffix == ".cc" or path not in first]


def clang(*arguments):
    """What Clang says against it, or an empty text."""
    done = subprocess.run(["clang++", *FLAGS, *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    return done.stdout if done.returncode else ""


def main():
    files = files_to_read()
    headers = {path: precompiled(path) for path in files}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        outputs = {}
        for i, names in enumerate(sorted(set(headers.values()) - {()})):
            source = Path(folder, f"{i}.h")
            source.write_text("".join(f"#include <{name}>\n" for name in names))
            outputs[names] = str(source) + ".pch"
        said = list(pool.map(lambda names: clang("-x", "c++-header", outputs[names][:-4], "-o", outputs[names]), outputs))

        def read(path):
            use = ["-include-pch", outputs[headers[path]]] if headers[path] else []
            return clang("-fsyntax-only", *use, "-x", "c++", str(path.relative_to(ROOT)))

        said += pool.map(read, files)
    findings = [text for text in said if text]
    print("\n".join([*findings, f"compiled alone: {len(files)} files, {len(findings)} that do not compile"]))
    return bool(findings) or not files


if __name__ == "__main__":
    sys.exit(main())
