#!/usr/bin/env python3
"""Keeps the structure of the tree: which module may include which, how long things may grow, and
what does not belong. Prints `path:line: [rule] what is wrong` and fails if there was any."""

import argparse
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cpp_source  # noqa: E402

LEVELS = {
    "base": 0,
    "contract": 1, "trace": 1, "device": 1, "tokenizer": 1, "jinja": 1, "http": 1, "terminal": 1,
    "cost": 2, "ports": 2, "quality": 2, "quant": 2, "chat": 2, "grammar": 2, "hub": 2, "host": 2,
    "scheduler": 3, "control": 3, "model": 3,
    "engine": 4, "worker": 4, "server": 4, "loadtest": 4,
    "fleet": 5,
    "sim": 6, "replica": 6,
    "measure": 7,
    "apps": 8,
}
PURE = {"base", "contract", "trace", "cost", "ports", "quality", "scheduler", "control", "engine", "fleet", "sim"}
METAL = {"device", "host", "model", "quant", "worker"}
EDGE = {"tokenizer", "jinja", "http", "chat", "grammar", "hub", "terminal", "server", "loadtest"}
COMPOSITION = {"replica", "measure", "apps"}  # put PURE, METAL and EDGE together
MEETING_POINTS = {"base", "contract", "cost", "ports", "trace"}  # all of PURE that METAL and EDGE may see

# Threads, clocks, files, sockets: what a state machine over events must not reach for. The
# calendar of <chrono> is arithmetic and harmless; its clocks are not.
IMPURE = re.compile(r"<(thread|mutex|shared_mutex|atomic|condition_variable|future|semaphore|latch|"
                    r"barrier|stop_token|ctime|time\.h|iostream|fstream|unistd\.h|pthread\.h|fcntl\.h|"
                    r"(sys|netinet|arpa)/.*|boost/(asio|beast).*)>")
IMPURE_WORDS = {"steady_clock", "system_clock", "high_resolution_clock", "utc_clock",
                "clock_gettime", "gettimeofday", "random_device", "getenv"}

FUNCTION_LINES, KERNEL_LINES = 70, 120
FILE_LINES, KERNEL_FILE_LINES = 500, 900
PARAMETERS, FIELDS = 5, 20

CPP = {".h", ".cc"}
WEB = {".ts", ".tsx", ".css", ".html"}
TEXT = CPP | WEB | {".py", ".mjs", ".js", ".sh", ".md", ".txt", ".cmake", ".toml", ".json", ".yml", ""}
CODE_FOLDERS = ("src", "tests", "bench", "tools", "web", ".ci")
PASSED_OVER = {".git", "node_modules", "models", "__pycache__", ".cache"}
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "misc"}

CODE_IN_COMMENT = re.compile(
    r"^(?:#\s*(?:include|if|ifdef|ifndef|define|endif|pragma)\b.*"
    r"|(?:(?:if|for|while|switch) \(.*|else\b.*|do )[;{}]"
    r"|(?:return|break|continue|using|delete|throw|co_return|co_await)\b.*;"
    r"|(?:const |static |constexpr |auto |std::|int |bool |float |double |void |char )[^.]*[;{]"
    r"|[\w:.\[\]]+(?:->[\w.\[\]]+)* [-+*/|&]?= .*;"
    r"|[\w:.\[\]>-]+\(.*\);"
    r"|[{}];?)$")
TODO = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")
# Words whose reader asks "who?" or "of what?", and openings that continue another sentence.
UNCLEAR = re.compile(r"\b(whoever|somebody|nobody|everybody)\b", re.IGNORECASE)
NO_SENTENCE = re.compile(r"^//\s*(Of|That)\s")
FOREIGN_WORDS = [
    (re.compile(r"(?<![\w.:}])/(?:work|root|home|Users)/\w"), "a path of one machine"),
    (re.compile(r"\b(?:registry|deb|security|files|index)\.(?:npm|debian|python|crates|yarn)\w*\."),
     "a package registry's host"),
    (re.compile(r'"resolved": "http'), "a package registry's host"),
]


class Tidy:
    def __init__(self, root):
        self.root = Path(root)
        self.violations = []
        self.files = 0
        self.links = read_links(self.root)

    def report(self, path, line, rule, message):
        self.violations.append(f"{path}:{line}: [{rule}] {message}")

    def run(self):
        for folder, folders, files in os.walk(self.root):
            folders[:] = sorted(f for f in folders
                                if f not in PASSED_OVER and not f.startswith("build"))
            for name in sorted(set(files) - PASSED_OVER):  # .git is a file in a linked worktree
                self.file(Path(folder, name).relative_to(self.root))
        return self.violations

    def file(self, path):
        if path.suffix not in TEXT or path.name == "LICENSE":
            return
        try:
            text = (self.root / path).read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            return
        self.files += 1
        if path.parts[:2] != ("tests", "tidy"):  # which has to name what it looks for
            self.words(path, text)
        if path.parts[0] in CODE_FOLDERS:
            self.file_name(path)
            self.file_length(path, text)
            if path.suffix in CPP:
                self.cpp(path, text)

    def words(self, path, text):
        for number, line in enumerate(text.splitlines(), 1):
            for pattern, what in FOREIGN_WORDS:
                if pattern.search(line):
                    self.report(path, number, "words", f"{what} does not belong in the tree")

    def file_name(self, path):
        for part in path.parts:
            empty = EMPTY_NAMES & set(re.split(r"[_.-]", part.lower()))
            if empty:
                self.report(path, 1, "name", f"'{empty.pop()}' says nothing; name what it does")

    def file_length(self, path, text):
        limit = KERNEL_FILE_LINES if is_kernel(path) else FILE_LINES
        lines = text.count("\n")
        is_program = path.suffix in CPP | WEB | {".py", ".mjs", ".js", ".sh"} or text.startswith("#!")
        if is_program and lines > limit:
            self.report(path, lines, "file-length", f"{lines} lines, at most {limit}")

    def cpp(self, path, text):
        source = cpp_source.read_source(text)
        self.includes(path, source)
        self.directives(path, source)
        self.comments(path, source)
        self.functions(path, source)
        self.variables(path, source)
        for record in source.records:
            if record.fields > FIELDS:
                self.report(path, record.line, "fields",
                            f"{record.name} has {record.fields} fields, at most {FIELDS}")

    def includes(self, path, source):
        if path.parts[0] != "src" or len(path.parts) < 3:
            return
        module = path.parts[1]
        is_test = path.stem.endswith(("_test", "_fuzz"))
        if module not in LEVELS:
            self.report(path, 1, "graph", f"module '{module}' has no level; add it to tidy.py")
            return
        must_be_pure = module in PURE - {"base"} and not is_test
        for word in IMPURE_WORDS & set(source.words) if must_be_pure else ():
            self.report(path, source.words[word], "pure", f"{module} is PURE and must not use {word}")
        for line, include in source.includes:
            if include.startswith("<"):
                if must_be_pure and IMPURE.match(include):
                    self.report(path, line, "pure", f"{module} is PURE and must not use {include}")
                continue
            target = include.strip('"').split("/")[0]
            if target not in LEVELS:
                # Highway's own headers are written in quotes everywhere, kernels included.
                if not (is_test and target == "tests") and not (is_kernel(path) and target == "hwy"):
                    self.report(path, line, "graph", f"{include} is in no module")
                continue
            why = forbidden_edge(module, target, is_test)
            if why:
                self.report(path, line, "graph", f"{module} must not include {include}: {why}")
            elif target not in reachable(module, self.links) and not is_test and module in self.links:
                self.report(path, line, "link", f"add {target} to DEPS in src/{module}/CMakeLists.txt")

    def directives(self, path, source):
        first = source.directives[0][1] if source.directives else ""
        if path.suffix == ".h" and not first.startswith("#pragma once") and not is_kernel(path):
            self.report(path, 1, "guard", "a header starts with #pragma once")
        for line, text in source.directives:
            if re.match(r"#\s*if", text) and not (is_kernel(path) and len(path.parts) > 3):
                self.report(path, line, "if", "#if belongs inside src/device/<backend>/")

    def comments(self, path, source):
        for line, text in source.comments:
            if TODO.search(text):
                self.report(path, line, "todo", "a TODO names its issue: TODO(#123)")
            for offset, comment in enumerate(text.strip("/*").splitlines()):
                if CODE_IN_COMMENT.match(comment.strip(" /*")):
                    self.report(path, line + offset, "commented-code", "delete it; git remembers")
        self.prose(path, source.comments)

    def prose(self, path, comments):
        lines = {line for line, _ in comments}
        for line, text in comments:
            if word := UNCLEAR.search(text):
                self.report(path, line, "prose", f"'{word.group()}': name who or what is meant")
            if line - 1 not in lines and NO_SENTENCE.match(text):
                self.report(path, line, "prose", "write a whole sentence with a verb and a subject")

    def functions(self, path, source):
        limit = KERNEL_LINES if is_kernel(path) else FUNCTION_LINES
        for function in source.functions:
            lines = function.last_line - function.first_line + 1
            if lines > limit:
                self.report(path, function.first_line, "function-length",
                            f"{function.name} has {lines} lines, at most {limit}")
            if function.parameters > PARAMETERS:
                self.report(path, function.first_line, "parameters",
                            f"{function.name} takes {function.parameters}, at most {PARAMETERS}")
            if re.search(r"(?:^|::)(?:get_?)?(?:instance|singleton)$", function.name.lower()):
                self.report(path, function.first_line, "singleton", f"{function.name}: pass it in")

    def variables(self, path, source):
        for variable in source.variables:
            if is_mutable(variable.words):
                self.report(path, variable.line, "mutable-global",
                            f"'{variable.name}' ({variable.where} scope) outlives its caller and "
                            "can change; pass it in")


def is_kernel(path):
    return path.parts[:2] == ("src", "device")


def read_links(root):
    """What each module's library is linked with, from its CMakeLists.txt."""
    links = {}
    for file in root.glob("src/*/CMakeLists.txt"):
        call = re.search(r"protean_module\((\w+)\s+DEPS\s+([^)]*?)(?:\sTEST_DEPS[^)]*)?\)", file.read_text())
        if call:
            links[call.group(1)] = set(call.group(2).split()) & set(LEVELS)
    return links


def reachable(module, links):
    found, rest = {module}, [module]
    while rest:
        new = links.get(rest.pop(), set()) - found
        found |= new
        rest += new
    return found


def is_mutable(words):
    if "thread_local" in words:
        return True
    if "constexpr" in words:
        return False
    for pointer in ("*", "&"):
        if pointer in words:
            after = words[len(words) - words[::-1].index(pointer):]
            return pointer == "*" and "const" not in after
    return "const" not in words


def forbidden_edge(module, target, is_test):
    """Why an include from `module` to `target` is not allowed; empty if it is."""
    if module == target:
        return ""
    if LEVELS[target] > LEVELS[module] or (LEVELS[target] == LEVELS[module] and not is_test):
        return f"level {LEVELS[target]} is not below level {LEVELS[module]}"
    if module in COMPOSITION:
        return ""
    if module in PURE and target not in PURE:
        return "PURE code knows neither devices nor sockets"
    if module not in PURE and target in PURE and target not in MEETING_POINTS:
        return "METAL and EDGE meet PURE only at " + ", ".join(sorted(MEETING_POINTS))
    if (module in METAL and target in EDGE) or (module in EDGE and target in METAL):
        return "METAL and EDGE meet only in " + ", ".join(sorted(COMPOSITION))
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default=Path(__file__).resolve().parents[2], type=Path)
    tidy = Tidy(parser.parse_args().root)
    violations = tidy.run()
    print("\n".join([*violations, f"tidy: {tidy.files} files, {len(violations)} violations"]))
    return 1 if violations or tidy.files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
