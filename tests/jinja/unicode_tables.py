"""Prints src/jinja/unicode_classes.cc or src/jinja/unicode_cases.cc (argument: classes or cases) from
Python's Unicode tables, so that a template's str methods behave as in that Python."""

import sys
import unicodedata

LAST = 0x110000


def ranges(holds):
    found, start = [], None
    for point in range(LAST + 1):
        inside = point < LAST and holds(chr(point))
        if inside and start is None:
            start = point
        elif not inside and start is not None:
            found.append((start, point - 1))
            start = None
    return found


def case_ranges(change):
    """Runs (first, last, step, delta) of characters that change into one other character."""
    runs = []
    for point in range(LAST):
        other = change(chr(point))
        if len(other) != 1 or other == chr(point):
            continue
        delta = ord(other) - point
        if runs:
            first, last, step, run_delta = runs[-1]
            if run_delta == delta and (point - last == step or first == last and point - last == 2):
                runs[-1] = (first, point, point - last, delta)
                continue
        runs.append((point, point, 1, delta))
    return runs


def print_table(kind, name, rows):
    constant = "k" + name.title().replace("_", "")
    print(f"constexpr std::array<{kind}, {len(rows)}> {constant} = {{{{")
    line = "   "
    for row in rows:
        cell = " {" + ", ".join(row) + "},"
        if len(line) + len(cell) > 100:
            print(line)
            line = "   "
        line += cell
    print(line)
    print("}};")


def print_classes():
    classes = {
        "unprintable": lambda c: not c.isprintable(),
        "alphabetic": str.isalpha,
        "digit": str.isdigit,
        "numeric": str.isnumeric,
    }
    for name, holds in classes.items():
        print_table("CodeRange", name, [(hex(a), hex(b)) for a, b in ranges(holds)])
    return [("CodeRange", name) for name in classes]


def print_cases():
    for name, change in {"upper": str.upper, "lower": str.lower}.items():
        rows = [(hex(a), hex(b), str(s), str(d)) for a, b, s, d in case_ranges(change)]
        print_table("CaseRange", name, rows)
    rows = []
    for point in range(LAST):
        points = [hex(ord(c)) for c in chr(point).upper()]
        if len(points) > 1:
            rows.append((hex(point), "{" + ", ".join(points + ["0"] * (3 - len(points))) + "}"))
    print_table("LongCase", "long_upper", rows)
    return [("CaseRange", "upper"), ("CaseRange", "lower"), ("LongCase", "long_upper")]


def main():
    print("// Written by tests/jinja/unicode_tables.py from Python " + sys.version.split()[0] +
          f", Unicode {unicodedata.unidata_version}.")
    print("// clang-format off")
    print('#include "jinja/unicode_tables.h"\n\n#include <array>\n')
    print("namespace protean::jinja {\nnamespace {\n")
    names = print_classes() if sys.argv[1] == "classes" else print_cases()
    print("\n}  // namespace\n")
    for kind, name in names:
        constant = "k" + name.title().replace("_", "")
        print(f"std::span<const {kind}> {name}_table() {{ return {constant}; }}")
    print("\n}  // namespace protean::jinja")


main()
