"""A check that cannot fail checks nothing: each rule sees a file that breaks it and one that does not."""

import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cpp_source  # noqa: E402
import tidy  # noqa: E402


def body_of(lines):
    return "".join("  step();\n" for _ in range(lines))


class TreeCase(unittest.TestCase):
    seen = ()

    def check(self, files):
        """The rules that a tree of these files breaks, in order."""
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                path = Path(root, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(textwrap.dedent(text))
            violations = tidy.Tidy(root).run()
        self.seen = violations
        return [v.split("[")[1].split("]")[0] for v in violations]

    def assert_breaks(self, rule, name, text):
        self.assertEqual(self.check({name: text}), [rule], self.seen)

    def assert_clean(self, name, text):
        self.assertEqual(self.check({name: text}), [], self.seen)


class ModuleGraph(TreeCase):
    def test_edges(self):
        allowed = [("contract", "base"), ("scheduler", "ports"), ("worker", "device"),
                   ("worker", "cost"), ("server", "http"), ("sim", "engine"), ("apps", "server"),
                   ("apps", "worker"), ("model", "device"), ("engine", "engine"),
                   ("replica", "worker"), ("replica", "chat"), ("measure", "replica"), ("host", "device")]
        for module, target in allowed:
            self.assert_clean(f"src/{module}/x.cc", f'#include "{target}/y.h"\n')
        forbidden = [("base", "contract"),  # up
                     ("cost", "ports"),  # level
                     ("scheduler", "device"), ("engine", "worker"), ("sim", "server"),  # PURE -> other
                     ("worker", "contract2"),  # unknown
                     ("server", "engine"), ("worker", "scheduler"),  # past the meeting points
                     ("server", "worker"), ("worker", "tokenizer"), ("server", "model"),
                     ("server", "apps"), ("replica", "measure"), ("measure", "apps"), ("sim", "replica"),
                     ("host", "terminal"), ("server", "host")]
        for module, target in forbidden:
            self.assert_breaks("graph", f"src/{module}/x.h",
                               f'#pragma once\n#include "{target}/y.h"\n')

    def test_tests_may_look_sideways_but_not_up_or_across(self):
        self.assert_clean("src/scheduler/x_test.cc", '#include "control/y.h"\n')
        self.assert_clean("src/server/x_fuzz.cc", '#include "tests/corpus.h"\n')
        self.assert_breaks("graph", "src/scheduler/x_test.cc", '#include "engine/y.h"\n')
        self.assert_breaks("graph", "src/server/x_test.cc", '#include "device/y.h"\n')

    def test_includes_in_comments_and_strings_do_not_count(self):
        self.assert_clean("src/base/x.cc", '''\
            /* as in
               "apps/y.h" and #include "apps/y.h"
            */
            const char* const kText = R"(
            #include "apps/y.h"
            )";
            ''')

    def test_what_is_included_is_linked(self):
        tree = {"src/engine/CMakeLists.txt": "protean_module(engine DEPS ports TEST_DEPS sim)\n",
                "src/ports/CMakeLists.txt": "protean_module(ports DEPS contract\n  fmt::fmt)\n",
                "src/engine/x.cc": '#include "contract/y.h"\n', "src/engine/x_test.cc": '#include "cost/y.h"\n'}
        self.assertEqual(self.check(tree), [], self.seen)
        tree["src/engine/x.cc"] += '#include "cost/y.h"\n'
        self.assertEqual(self.check(tree), ["link"], self.seen)

    def test_highway_in_kernels(self):
        self.assert_clean("src/device/cpu/x.cc", '#include "hwy/highway.h"\n')
        self.assert_breaks("graph", "src/model/x.cc", '#include "hwy/highway.h"\n')

    def test_unknown_module(self):
        self.assert_breaks("graph", "src/gadgets/x.cc", "int f();\n")

    def test_pure_code_has_no_threads_clock_or_sockets(self):
        for header in ("thread", "mutex", "atomic", "condition_variable", "sys/mman.h", "unistd.h",
                       "iostream", "fstream", "boost/asio/ip/tcp.hpp"):
            self.assert_breaks("pure", "src/engine/x.cc", f"#include <{header}>\n")
            self.assert_clean("src/worker/x.cc", f"#include <{header}>\n")
            self.assert_clean("src/base/x.cc", f"#include <{header}>\n")
            self.assert_clean("src/engine/x_test.cc", f"#include <{header}>\n")
        self.assert_breaks("pure", "src/sim/x.cc", "auto f() { return steady_clock::now(); }\n")
        self.assert_clean("src/sim/x.cc", "#include <chrono>\n// no steady_clock here\n")


class Limits(TreeCase):
    def test_function_length(self):
        forms = [  # what stands before, the first lines of the function, what stands behind
            ("", "void f() {", ""),
            ("", "template <class T>\nT Foo<T>::f(int a) const {", ""),
            ("struct S {", "bool operator()(int a, int b) const {", "};"),
            ("struct S {", "S() : a_{1}, b_(2), c_{3} {", "};"),
            ("namespace a::b {\nnamespace {", "TEST(Foo, Bar) {", "}\n}"),
            ('#include "base/y.h"', 'extern "C" int fuzz(const char* data) {', ""),
            ("class Foo;", "auto f() -> std::vector<int> {", ""),
            ("struct S { int a; };", "asio::awaitable<void> Foo::run(int a,\n    int b) {", ""),
            ("enum class E { kA, kB };", "struct Foo f() {", ""),
            ("using T = int;", "Foo::~Foo() {", ""),
            ("class Foo : public Bar<int(int)> {\n public:", "explicit operator bool() const {", "};"),
            ("", "template <class T> requires (sizeof(T) > 4)\nvoid f(T t) noexcept(true) {", ""),
        ]
        for before, signature, behind in forms:
            with self.subTest(signature):
                lines = 68 - signature.count("\n") + signature.startswith("template")
                function = f"{before}\n{signature}\n{body_of(lines)}}}\n{behind}\n"
                self.assert_clean("src/base/x.cc", function)
                longer = function.replace("  step();\n", "  step();\n  step();\n", 1)
                self.assert_breaks("function-length", "src/base/x.cc", longer)

    def test_kernels_may_be_longer(self):
        self.assert_clean("src/device/cpu/x.cc", f"void f() {{\n{body_of(118)}}}\n")
        self.assert_breaks("function-length", "src/device/cpu/x.cc",
                           f"void f() {{\n{body_of(119)}}}\n")

    def test_braces_that_do_not_count(self):
        self.assert_breaks("function-length", "tests/x.cc", '''\
            void f() {
              const auto g = [] { return "}"; };
              char c = '}';  // a }
              const int n = 1'000'000;
              const char* r = R"x(}}}})x";
            ''' + body_of(66) + "}\n")
        self.assert_clean("src/base/x.cc", f"class Foo {{\n{'  void f();' * 80}\n}};\n")

    def test_file_length(self):
        self.assert_clean("tests/x.py", "pass\n" * 500)
        self.assert_breaks("file-length", "tests/x.py", "pass\n" * 501)
        self.assert_breaks("file-length", "src/base/x.cc", "//\n" * 501)
        for path in ("bench/x", ".ci/x", "tools/x"):  # programs whose names have no suffix
            self.assert_clean(path, "#!/bin/sh\n" + "true\n" * 499)
            self.assert_breaks("file-length", path, "#!/bin/sh\n" + "true\n" * 500)
        self.assert_clean("src/device/x.cc", "//\n" * 900)
        self.assert_breaks("file-length", "src/device/x.cc", "//\n" * 901)

    def test_parameters(self):
        many = "std::map<int, int> a, int b = f(1, 2), std::function<void(int, int)> c, int d, int e"
        for form in ("void f(%s);\n", "void Foo::f(%s) {}\n", "struct S {\n  S(%s) : a_(a), b_{b} {}\n};\n",
                     "struct S {\n  virtual void f(%s) = 0;\n};\n", "bool operator()(%s) { }\n",
                     "explicit(false) Foo::Foo(%s) {}\n"):
            self.assert_clean("src/base/x.cc", form % many)
            self.assert_breaks("parameters", "src/base/x.cc", form % (many + ", int f"))

    def test_fields(self):
        fields = "".join(f"  std::map<int, int> a{i};\n  int b{i} = g(1, 2);\n" for i in range(10))
        rest = ("  void f(int a, int b);\n  static constexpr int kX = 1;\n  using Y = int;\n"
                "  enum class E { kA, kB };\n  struct Inner {\n    int z;\n  };\n  friend class Q;\n")
        self.assert_clean("src/base/x.cc", f"struct S {{\n{fields}{rest}}};\n")
        for one in ("  int c;\n", "  int c{1};\n", "  std::function<void(int)> c;\n", "  Inner c = {};\n"):
            self.assert_breaks("fields", "src/base/x.cc", f"struct S {{\n{fields}{rest}{one}}};\n")


class State(TreeCase):
    def test_mutable_globals(self):
        for text in ("int counter = 0;", "static std::mutex lock;", "namespace { std::vector<int> v; }",
                     "std::map<int, const char*> table{{1, nullptr}};", "const char* name = nullptr;",
                     "int Foo::count = 0;", "thread_local const int x = 1;", "std::mt19937 random(42);",
                     "struct S { static int count; };", "inline std::atomic<bool> stop{false};",
                     "void (*hook)(int) = nullptr;", "constinit int x = 0;", "extern int x;",
                     "struct S { int a; } s;",
                     "int f() { static int n = 0; return ++n; }",
                     "Foo& f() { static Foo foo(1, 2); return foo; }",
                     "int f() { thread_local int n = 0; return ++n; }",
                     "int f() { static thread_local int n = 0; return ++n; }"):
            with self.subTest(text):
                self.assert_breaks("mutable-global", "src/base/x.cc", text + "\n")

    def test_constants_and_functions(self):
        self.assert_clean("src/base/x.cc", '''\
            constexpr int kA = 1;
            inline constexpr const char* kB = "b";
            const std::map<int, std::vector<int>> kC = {{1, {2}}};
            const char* const kD[] = {"a", "b"};
            const Foo& kE = kC;
            static_assert(kA < 2);
            class Later;
            using Handler = std::function<void(int)>;
            template <class T> constexpr bool kIs = false;
            template <class T> concept Small = requires(T t) { t.size(); };
            template class Foo<int>;
            enum class E : int { kX, kY };
            bool operator==(const Foo&, const Foo&) = default;
            auto operator<=>(const Foo&, const Foo&) = default;
            bool operator<(const Foo& a, const Foo& b);
            Foo::Foo() = default;
            template <> struct std::hash<Foo> { int operator()(Foo) const { return 0; } };
            BENCHMARK(steps)->Arg(1)->Arg(2);
            static int plain(int a) { return a; }
            int f() {
              static constexpr int kTable[] = {1, 2};
              static const std::regex kRegex("a");
              struct Local { static int of(int a) { return a; } };
              return static_cast<int>(kTable[0]);
            }
            struct S {
              static constexpr int kX = 1;
              static S make(int a);
              int mutable_by_design = 0;
            };
            ''')

    def test_singleton(self):
        self.assert_breaks("singleton", "src/base/x.cc", "Registry& Registry::instance() { return *r; }\n")


class Shape(TreeCase):
    def test_if_only_in_backends(self):
        self.assert_clean("src/device/cpu/x.cc", "#if HWY_ONCE\n#endif\n")
        self.assert_breaks("if", "src/device/x.cc", "#ifdef X\n#endif\n")
        self.assert_breaks("if", "src/server/x.cc", "#  if X\n#endif\n")

    def test_header_guard(self):
        self.assert_breaks("guard", "src/base/x.h", "#include <vector>\n")
        self.assert_clean("src/base/x.h", "// why\n#pragma once\n#include <vector>\n")

    def test_names(self):
        for name in ("src/base/utils.cc", "src/server/http_helpers.cc", "tests/common/x.cc"):
            self.assert_breaks("name", name, "int f();\n")
        self.assert_clean("src/server/commonplace.cc", "int f();\n")

    def test_commented_out_code(self):
        for text in ("// foo(a, b);", "// return 1;", "// if (x) {", "/* int x = 1; */", "// x.y = z;",
                     "// #include <vector>", "// }", "// const auto x = f();", "// a->b(c);"):
            with self.subTest(text):
                self.assert_breaks("commented-code", "src/base/x.cc", text + "\n")
        for text in ("// Returns f(a, b); never fails.", "// if this is so, the caller waits;",
                     "// see foo(a).", "// {\"error\": 1}", "// for people; it may change.",
                     "// a < b; b < c", "// while (true) is what a server does",
                     "// Example: [layer][head][K, V]", "/* one; two; three */"):
            with self.subTest(text):
                self.assert_clean("src/base/x.cc", text + "\n")

    def test_comments_are_sentences(self):
        self.assert_breaks("prose", "src/base/x.cc", "// Waits for whoever asked.\n")
        self.assert_breaks("prose", "src/base/x.cc", "// Of the weights that one device holds.\n")
        self.assert_breaks("prose", "src/base/x.cc", "int x();  // That many bytes.\n")
        self.assert_clean("src/base/x.cc", "// Counts the weights, all of them, so\n// That is how it is.\n")

    def test_todo_names_its_issue(self):
        self.assert_breaks("todo", "src/base/x.cc", "// TODO: later\n")
        self.assert_clean("src/base/x.cc", "// TODO(#12): later\n")

    def test_words(self):
        self.assert_breaks("words", "docs/x.md", "see /wo" "rk/main/README.md\n")
        self.assert_breaks("words", "tests/e2e/package-lock.json", '"resolved": "http' 's://r.example/x.tgz"\n')
        self.assert_clean("docs/x.md", "GET /v1/work/x, src/work/x, https://example.com/home/x\n")


class Reader(unittest.TestCase):
    def test_names_and_lines(self):
        source = cpp_source.read_source(textwrap.dedent('''\
            namespace a {
            Result<std::map<int, int>> Foo::parse(
                std::string_view text) {
              return {};
            }
            bool operator<(A a, B b) { return true; }
            template <class D, HWY_IF_X(D)>
            HWY_INLINE void kernel(D d) {}
            }
            '''))
        self.assertEqual([(f.name, f.first_line, f.last_line, f.parameters) for f in source.functions],
                         [("Foo::parse", 2, 5, 1), ("operator <", 6, 6, 2), ("kernel", 8, 8, 1)])


class Program(unittest.TestCase):
    def run_on(self, text):
        with tempfile.TemporaryDirectory() as root:
            path = Path(root, "src/base/x.cc")
            path.parent.mkdir(parents=True)
            path.write_text(text)
            return subprocess.run([sys.executable, Path(tidy.__file__), "--root", root],
                                  capture_output=True, text=True, check=False)

    def test_exit_codes(self):
        bad = self.run_on("int counter = 0;\n")
        self.assertEqual(bad.returncode, 1)
        self.assertIn("src/base/x.cc:1: [mutable-global]", bad.stdout)
        self.assertEqual(self.run_on("constexpr int kX = 0;\n").returncode, 0)


if __name__ == "__main__":
    unittest.main()
