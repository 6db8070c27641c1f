#!/usr/bin/env python3
"""clang-tidy over the library and the programs, BUILD/compile_commands.json in hand: lint.py BUILD

Most of its time goes into headers, so files of a module are read together, as one source that
includes them. Where two of them do not go together (they name different things alike), the group is
halved until they do.
"""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

AT_ONCE = 24  # files of a group: enough to share headers, few enough for two cores to share the groups
ROOT = pathlib.Path(__file__).resolve().parents[2]


def read_groups(build):
    """Sources of one folder with the same flags, in lists of at most AT_ONCE."""
    folders = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        if ROOT / "src" in path.parents and not re.search(r"_(test|fuzz)\.cc$", path.name):
            words = shlex.split(entry["command"])
            flags = tuple(word for word in words if re.match(r"-([DIWfm]|std|isystem)", word) or
                          (word.startswith("/") and words[words.index(word) - 1] == "-isystem"))
            folders.setdefault((path.parent, flags), []).append(path)
    for (_, flags), paths in folders.items():
        for begin in range(0, len(paths), AT_ONCE):
            yield flags, sorted(paths)[begin:begin + AT_ONCE]


def run(*words):
    done = subprocess.run(words, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout


def lint(build, flags, paths):
    """(passed, what clang-tidy said) of some files."""
    source = paths[0]
    if len(paths) > 1:
        name = "-".join([paths[0].parent.name, paths[0].stem, str(len(paths))]) + ".cc"
        source = build / "groups" / name
        source.write_text("".join(f'#include "{path}"\n' for path in paths))
    failed, said = run("clang-tidy", "--quiet", str(source), "--", *flags)
    if failed and len(paths) > 1 and "[clang-diagnostic-error]" in said:
        half = len(paths) // 2
        first, second = lint(build, flags, paths[:half]), lint(build, flags, paths[half:])
        return first[0] and second[0], first[1] + second[1]
    return not failed, said if failed else ""


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    (build / "groups").mkdir(exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda group: lint(build, *group), read_groups(build)))
    for passed, said in results:
        if not passed:
            print(said)
    print(f"clang-tidy: {len(results)} groups of files, {sum(not passed for passed, _ in results)} with findings")
    return any(not passed for passed, _ in results)


if __name__ == "__main__":
    sys.exit(main())
