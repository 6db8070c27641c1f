"""Renders chat-template cases with jinja2, set up as Hugging Face's apply_chat_template does.

Reads a JSON list of cases from the file named and prints a JSON list of results: {"text": ...} or
{"error": ...}. A case holds "template" and the names it is rendered with under "context"; "now" is
the time that strftime_now() tells (ISO, local). Exit status 77: there is no jinja2 here.
"""

import copy
import datetime
import json
import sys

try:
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
except ImportError:
    sys.exit(77)


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the assistant said; as a block it prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    @staticmethod
    def _body(caller):
        return caller()


def raise_exception(message):
    raise jinja2.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment(now=None):
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    if now is not None:
        made.globals["strftime_now"] = datetime.datetime.fromisoformat(now).strftime
    return made


def render_contexts(source, contexts, now=None):
    """What the template gives with each of the contexts."""
    results = []
    compiled = failure = None
    try:
        compiled = environment(now).from_string(source)
    except Exception as error:
        failure = error
    for context in contexts:
        try:
            if failure:
                raise failure
            # A copy: the filter indent adds a newline to a list in place.
            text = compiled.render(**copy.deepcopy(context))
            text.encode()  # fails for a single surrogate
            results.append({"text": text})
        except Exception as error:  # an exception is the template's result
            results.append({"error": f"{type(error).__name__}: {error}"})
    return results


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        cases = json.load(file)
    json.dump([render_contexts(case["template"], [case["context"]], case.get("now"))[0] for case in cases],
              sys.stdout)


if __name__ == "__main__":
    main()
