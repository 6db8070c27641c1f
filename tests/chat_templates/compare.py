#!/usr/bin/env python3
"""Compares rendering of chat templates with Python's jinja2, byte for byte.

  compare.py --render PROGRAM [--data] PATH...

PATH: a file or a folder with templates (*.jinja), tokenizer configurations (tokenizer_config.json,
chat_template.json) or models (*.gguf); --data adds those of $PROTEAN_DATA, else ../shared/data.
Each is rendered with some hundred conversations, by jinja2 set up as Hugging Face's
apply_chat_template does (tests/jinja/reference.py) and by PROGRAM, which is render_contexts.cc.
Where jinja2 fails, the program must fail too, with the template's own message if it raises one.
Exit status 77: there is no jinja2, or no template.
"""

import argparse
import copy
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import chats

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "jinja"))
import reference  # noqa: E402

NOW = "2024-03-05T09:08:07"
RAISED = "TemplateError: "


def gguf_templates(path):
    """Yields tokenizer.chat_template* of a GGUF file's metadata."""
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    with open(path, "rb") as file:
        def number(form):
            return struct.unpack("<" + form, file.read(struct.calcsize(form)))[0]

        def value(kind):
            if kind == 8:
                return file.read(number("Q"))
            if kind == 9:
                kind, count = number("I"), number("Q")
                return [value(kind) for _ in range(count)]
            return file.read(sizes[kind])

        if file.read(4) != b"GGUF":
            return
        number("I")
        number("Q")
        for _ in range(number("Q")):
            key = value(8).decode()
            found = value(number("I"))
            if key.startswith("tokenizer.chat_template") and isinstance(found, bytes):
                yield f"{path.name}:{key}", found.decode()


def file_templates(path):
    """Yields (name, source) of every template in a file."""
    if path.suffix == ".jinja":
        yield path.name, path.read_text(encoding="utf-8")
    elif path.suffix == ".gguf":
        yield from gguf_templates(path)
    elif path.name in ("tokenizer_config.json", "chat_template.json"):
        found = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        name = f"{path.parent.name}/{path.name}"
        if isinstance(found, str):
            yield name, found
        elif isinstance(found, list):
            yield from ((f"{name}:{entry['name']}", entry["template"]) for entry in found)


def templates(paths):
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file():
                yield from file_templates(file)


def with_call_objects(context):
    """Turns arguments that a client sends as text into objects, which templates expect."""
    context = copy.deepcopy(context)
    for message in context["messages"]:
        for call in message.get("tool_calls") or []:
            function = call.get("function", {})
            if isinstance(function.get("arguments"), str):
                function["arguments"] = json.loads(function["arguments"])
    return context


def agree(here, there):
    if "text" in there:
        return here.get("text") == there["text"]
    message = there["error"]
    own = message.removeprefix(RAISED) if message.startswith(RAISED) else ""
    return "error" in here and own in here["error"]


def first_difference(here, there):
    if "error" in here or "error" in there:
        return f"  here: {str(here)[-400:]}\n  jinja2: {str(there)[-400:]}"
    a, b = here["text"], there["text"]
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return f"  here: ...{a[max(0, at - 60):at + 60]!r}\n  jinja2: ...{b[max(0, at - 60):at + 60]!r}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--render", required=True, help="the program render_contexts")
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--data", action="store_true", help="also the test data's templates")
    arguments = parser.parse_args()
    paths = list(arguments.paths)
    if arguments.data:
        data = Path(os.environ.get("PROTEAN_DATA", "../shared/data"))
        paths += [folder for folder in (data / "tokenizers", data / "models") if folder.exists()]
    named = list(templates(paths))
    if not named:
        print("compare.py: no template in", *paths)
        sys.exit(77)
    contexts = chats.contexts()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"now": NOW, "templates": [source for _, source in named],
                   "contexts": [context for _, context in contexts]}, file)
        file.flush()
        output = subprocess.run([arguments.render, file.name], stdout=subprocess.PIPE, check=True)
    found = json.loads(output.stdout)
    objects = [(name, with_call_objects(context)) for name, context in contexts]
    failed = rendered = 0
    for (name, source), results in zip(named, found):
        wrong = []
        expected = reference.render_contexts(source, [context for _, context in objects], NOW)
        for (label, _), here, there in zip(objects, results, expected):
            rendered += "text" in there
            if not agree(here, there):
                wrong.append(f"{name}, {label}\n{first_difference(here, there)}")
        failed += bool(wrong)
        if wrong:
            print(f"{wrong[0]}\n  ({len(wrong)} of {len(contexts)} conversations differ)")
    print(f"{len(named)} templates, {len(contexts)} conversations each, {rendered} rendered: "
          f"{failed} templates differ")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
