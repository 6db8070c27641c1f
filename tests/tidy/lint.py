#!/usr/bin/env python3
"""clang-tidy over the library and the programs, BUILD/compile_commands.json in hand: lint.py BUILD

Most of its time goes into headers, so it reads together what is compiled together: BUILD is a unity
build, and a finding is in a file that another one includes. Checks walk all that Clang has read, so bodies of templates
that nothing instantiates, nearly all of them of libraries, are not read.
"""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parents[2]


def read_sources(build):
    """(path, flags) of each source of src/, or of several together."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        if {ROOT / "src", build / "src"} & set(path.parents):
            words = shlex.split(entry["command"])
            yield path, [word for word, before in zip(words[1:], words)
                         if re.match(r"-([DIWfm]|std|isystem)", word) or before == "-isystem"]


def lint(path, flags):
    """What clang-tidy found, or None."""
    done = subprocess.run(["clang-tidy", "--quiet", str(path), "--", *flags, "-fdelayed-template-parsing"], cwd=ROOT,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.stdout if done.returncode else None


def main():
    sources = sorted(read_sources(pathlib.Path(sys.argv[1]).resolve()))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        findings = [said for said in pool.map(lambda source: lint(*source), sources) if said]
    print("\n".join([*findings, f"clang-tidy: {len(findings)} of {len(sources)} sources have findings"]))
    return bool(findings) or not sources


if __name__ == "__main__":
    sys.exit(main())
