"""Reads a C++ file far enough to know its includes, comments, functions, fields and variables.

Not a compiler: it follows braces and the words before them, which is all that well-formatted code
needs. What it cannot make sense of it passes over.
"""

import re
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<raw>(?:u8|[uUL])?R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)")
      | (?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
      | (?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')
      | (?P<directive>^[ \t]*\#(?:\\\n|//[^\n]*|/\*.*?\*/|[^\n])*)
      | (?P<number>\.?\d(?:'?[\w.]|(?<=[eEpP])[+-])*)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<mark>::|->\*?|<<=|<=>|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%^&|]=|\.\.\.|[^\s\w])
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)

CLASS_KEYS = {"class", "struct", "union"}
NOT_A_NAME = {"alignas", "decltype", "noexcept", "explicit", "requires", "throw", "__attribute__"}
NOT_VARIABLES = {"using", "typedef", "static_assert", "friend", "template", "namespace", "concept",
                 "enum", "asm", "return", "goto", "operator"}


@dataclass
class Token:
    kind: str
    text: str
    line: int


@dataclass
class Function:
    name: str
    first_line: int
    last_line: int  # of a declaration: the same
    parameters: int


@dataclass
class Variable:
    name: str
    line: int
    words: list  # the declaration up to its initialiser
    where: str  # "namespace", "class" or "function"


@dataclass
class Record:
    name: str
    line: int
    fields: int = 0


@dataclass
class Source:
    includes: list = field(default_factory=list)  # (line, '"base/ids.h"' or '<mutex>')
    directives: list = field(default_factory=list)  # (line, text)
    comments: list = field(default_factory=list)  # (line, text)
    functions: list = field(default_factory=list)
    variables: list = field(default_factory=list)  # of static storage, constants among them
    records: list = field(default_factory=list)
    words: dict = field(default_factory=dict)  # each word of the code: the line it is first on


def tokenize(text):
    line, last = 1, 0
    for match in TOKEN.finditer(text):
        line += text.count("\n", last, match.start())
        last = match.start()
        kind = match.lastgroup if match.lastgroup != "tag" else "raw"
        yield Token(kind, match.group(), line)


def read_source(text):
    source = Source()
    code = []
    for token in tokenize(text):
        if token.kind == "comment":
            source.comments.append((token.line, token.text))
        elif token.kind == "directive":
            lead = len(token.text) - len(token.text.lstrip())
            directive = token.text[lead:]
            source.directives.append((token.line, directive))
            include = re.match(r'#\s*include\s*("[^"]+"|<[^>]+>)', directive)
            if include:
                source.includes.append((token.line, include.group(1)))
        else:
            code.append(token)
            if token.kind == "word":
                source.words.setdefault(token.text, token.line)
    _Reader(code, source).read()
    return source


def skip_group(tokens, start):
    """Index after the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(tokens)):
        if tokens[i].kind == "mark":
            if tokens[i].text in "([{":
                depth += 1
            elif tokens[i].text in ")]}":
                depth -= 1
                if depth == 0:
                    return i + 1
    return len(tokens)


def skip_angles(tokens, start):
    """Index after the `>` that closes the `<` at `start`; `start` + 1 where none does."""
    depth, i = 0, start
    while i < len(tokens):
        text = tokens[i].text
        if text in ("(", "[", "{"):
            i = skip_group(tokens, i)
            continue
        if text in (")", "]", "}", ";"):
            break
        depth += (text == "<") - (text == ">")
        if depth == 0:
            return i + 1
        i += 1
    return start + 1


def without_prefixes(head):
    """The declaration without attributes, template<...> and requires (...) before it."""
    kept, i = [], 0
    while i < len(head):
        text = head[i].text
        if text == "[" and i + 1 < len(head) and head[i + 1].text == "[":
            i = skip_group(head, i)
        elif text == "template" and i + 1 < len(head) and head[i + 1].text == "<":
            i = skip_angles(head, i + 1)
        elif text == "requires" and not kept and i + 1 < len(head) and head[i + 1].text == "(":
            i = skip_group(head, i + 1)
        elif text in ("alignas", "__attribute__") and i + 1 < len(head):
            i = skip_group(head, i + 1)
        else:
            kept.append(head[i])
            i += 1
    return kept


def parameter_list(head):
    """(index of the name, index of the parenthesis) of what `head` declares as a function."""
    i = 0
    while i < len(head):
        text = head[i].text
        if text == "operator":
            name = i
            i += 1
            if head[i:i + 2] and [t.text for t in head[i:i + 2]] == ["(", ")"]:
                i += 2
            while i < len(head) and head[i].text != "(":
                i += 1
            return (name, i) if i < len(head) else None
        if text == "=":
            return None
        if text == "<" and i > 0 and head[i - 1].kind == "word":
            i = skip_angles(head, i)
            continue
        if text == "(":
            before = head[i - 1] if i > 0 else None
            after = head[i + 1] if i + 1 < len(head) else head[i]
            named = before is not None and (before.kind == "word" or before.text == ">")
            if named and (after.text == "*" or after.kind in ("number", "string", "char")):
                return None  # a pointer to function, or a variable and what it starts with
            if named and before.text not in NOT_A_NAME:
                return i - 1, i
        if text in ("(", "[", "{"):
            i = skip_group(head, i)
            continue
        i += 1
    return None


def count_parameters(head, open_paren):
    inside = head[open_paren + 1:skip_group(head, open_paren) - 1]
    if not inside or [t.text for t in inside] == ["void"]:
        return 0
    commas, i = 0, 0
    while i < len(inside):
        text = inside[i].text
        if text in ("(", "[", "{"):
            i = skip_group(inside, i)
            continue
        if text == "<" and i > 0 and inside[i - 1].kind == "word":
            i = skip_angles(inside, i)
            continue
        commas += text == ","
        i += 1
    return commas + 1


def is_macro_call(head):
    return (len(head) > 1 and head[1].text == "(" and
            re.fullmatch(r"[A-Z][A-Z0-9_]+", head[0].text) is not None)


def declared_words(head):
    """The words of a variable's declaration before its initialiser, template arguments left out,
    so that a `const` found there is the variable's own or its pointee's."""
    words, i = [], 0
    while i < len(head):
        text = head[i].text
        if text == "(" and head[i + 1].text == "*":
            words += [t.text for t in head[i + 1:skip_group(head, i) - 1]]
            break
        if text in ("=", "{", "("):
            break
        if text == "<" and i > 0 and head[i - 1].kind == "word":
            i = skip_angles(head, i)
        elif text == "[":
            i = skip_group(head, i)
        else:
            words.append(text)
            i += 1
    return words


class _Reader:
    """Walks namespaces and classes; function bodies are only searched for static variables."""

    def __init__(self, tokens, source):
        self.tokens = tokens
        self.source = source
        self.i = 0

    def read(self):
        while self.i < len(self.tokens):
            self.scope("namespace", None)
            self.i += 1  # a stray closing brace

    def scope(self, where, record):
        head = []
        while self.i < len(self.tokens):
            token = self.tokens[self.i]
            if token.text == "}" and token.kind == "mark":
                return
            if token.text == ";" and token.kind == "mark":
                self.declaration(head, where, record)
                head = []
                self.i += 1
            elif token.text == "{" and token.kind == "mark":
                head = self.braces(head, where)
            elif token.text in ("(", "[") and token.kind == "mark":
                end = skip_group(self.tokens, self.i)
                head += self.tokens[self.i:end]
                self.i = end
            elif token.text == ":" and [t.text for t in head] in (["public"], ["private"],
                                                                   ["protected"]):
                head = []
                self.i += 1
            else:
                head.append(token)
                self.i += 1

    def braces(self, head, where):
        """Enters or passes the braces at the cursor; what remains of the declaration before them."""
        start = self.i
        end = skip_group(self.tokens, start)
        bare = without_prefixes(head)
        texts = [t.text for t in bare]
        if "namespace" in texts or (texts[:1] == ["extern"] and "(" not in texts):
            self.i += 1
            self.scope("namespace", None)
            self.i = end
            return []
        key = next((t for t in bare if t.kind == "word" and t.text not in ("typedef", "static")),
                   None)
        if key is not None and key.text in CLASS_KEYS and parameter_list(bare) is None:
            name = next((t.text for t in bare[bare.index(key) + 1:] if t.kind == "word"), "")
            record = Record(name or "(unnamed)", key.line)
            self.source.records.append(record)
            self.i += 1
            self.scope("class", record)
            self.i = end
            return [Token("mark", "{}", key.line)]
        place = parameter_list(bare)
        if place is None or (key is not None and key.text == "enum") or self.is_initialiser(bare):
            self.i = end
            return head + self.tokens[start:end]
        self.function(bare, place, self.tokens[end - 1].line)
        self.body(self.tokens[start + 1:end - 1])
        self.i = end
        return []

    @staticmethod
    def is_initialiser(bare):
        """After `Foo::Foo() : a_(1), b_` come braces that are not yet the body; nor are those of a
        requires-expression."""
        depth, colon = 0, False
        for token in bare:
            depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
            colon = colon or (depth == 0 and token.text == ":")
        last = bare[-1]
        if last.text == "requires":
            return True
        return colon and (last.kind == "word" or last.text == ">")

    def function(self, bare, place, last_line):
        name, paren = place
        begin = name
        while begin >= 2 and bare[begin - 1].text in ("::", "~"):
            begin -= 1 if bare[begin - 1].text == "~" else 2
        if bare[name].text == "operator":
            title = "".join(t.text for t in bare[begin:paren]).replace("operator", "operator ")
        else:
            title = "".join(t.text for t in bare[begin:name + 1])
        parameters = 0 if is_macro_call(bare) else count_parameters(bare, paren)
        self.source.functions.append(Function(title, bare[0].line, last_line, parameters))

    def declaration(self, head, where, record):
        if head and head[0].text == "template" and len(head) > 1 and head[1].text != "<":
            return  # an explicit instantiation
        bare = without_prefixes(head)
        if not bare or is_macro_call(bare) or bare[0].text in NOT_VARIABLES:
            return
        if bare[0].text == "extern" and len(bare) > 1 and bare[1].text == "template":
            return
        if bare[0].text in CLASS_KEYS and len(bare) <= 2:
            return  # a forward declaration
        place = parameter_list(bare)
        if place is not None:
            self.function(bare, place, bare[-1].line)
            self.source.functions[-1].last_line = self.source.functions[-1].first_line
            return
        self.variable(bare, where, record)

    def variable(self, bare, where, record):
        words = declared_words(bare)
        names = [w for w in words if re.match(r"[A-Za-z_]", w)]
        if not names or (len(names) < 2 and "{}" not in words):
            return
        if where == "class" and not {"static", "thread_local"} & set(words):
            record.fields += 1 + self.extra_declarators(bare)
            return
        self.source.variables.append(Variable(names[-1], bare[0].line, words, where))

    @staticmethod
    def extra_declarators(bare):
        commas, i = 0, 0
        while i < len(bare):
            if bare[i].text in ("(", "[", "{"):
                i = skip_group(bare, i)
            elif bare[i].text == "<" and i > 0 and bare[i - 1].kind == "word":
                i = skip_angles(bare, i)
            else:
                commas += bare[i].text == ","
                i += 1
        return commas

    def body(self, tokens):
        for i, token in enumerate(tokens):
            if token.kind != "word" or token.text not in ("static", "thread_local"):
                continue
            end = i
            while end < len(tokens) and tokens[end].text not in (";", "{", "="):
                end = skip_group(tokens, end) if tokens[end].text in ("(", "[") else end + 1
            head = tokens[i:end]
            place = parameter_list(head)
            is_method = end < len(tokens) and tokens[end].text == "{" and place is not None
            if not is_method and (i == 0 or tokens[i - 1].text not in ("static", "thread_local")):
                words = declared_words(head)
                self.source.variables.append(Variable(words[-1], token.line, words, "function"))
