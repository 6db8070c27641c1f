"""Conversations of every kind that clients send, as the names that a template is rendered with."""

import json


def call(name, arguments, call_id=None):
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": call_id, **made} if call_id else made


def user(text="What is the weather in Paris & Rome?"):
    return {"role": "user", "content": text}


def system(text="You are <helpful>."):
    return {"role": "system", "content": text}


def assistant(text="It's sunny."):
    return {"role": "assistant", "content": text}


def calls(*made, **more):
    return {"role": "assistant", "content": None, "tool_calls": list(made), **more}


def result(text, call_id="abcdef123", **more):
    return {"role": "tool", "tool_call_id": call_id, "content": text, **more}


def text_part(text):
    return {"type": "text", "text": text}


WEATHER = call("get_weather", {"city": "Paris", "days": 3}, "abcdef123")
NESTED = call("plan", {"steps": [{"n": 1, "ok": True}, {"n": 2.5, "ok": None}], "note": "\"é\" <日>\n\\", "empty": {},
                       "list": []}, "ghijkl456")
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}

CHATS = {
    "user": [user()],
    "system and user": [system(), user()],
    "turns": [system(), user("Hi"), assistant("Hello!"), user("  Next?\n")],
    "turns without system": [user("Hi"), assistant(), user("And now?"), assistant("Rain."), user("Bye")],
    "ends with the assistant": [user("Hi"), assistant("Hel")],
    "white space": [system("\n system \n"), user("\n\n a \t"), assistant("  b\n"), user("")],
    "unicode": [system("Überträger 😀"), user("日本語 <|im_end|> \u2028 {{ x }}"), assistant("½"), user("é\u0301")],
    "call": [user(), calls(WEATHER), result('{"temp": 21.5}'), assistant(), user("Thanks")],
    "call at the end": [system(), user(), calls(WEATHER)],
    "call and result at the end": [system(), user(), calls(WEATHER), result("sunny", name="get_weather")],
    "call with words": [user(), {**calls(WEATHER), "content": "Let me look."}, result("21"), assistant("21 degrees.")],
    "call with empty content": [user(), {**calls(WEATHER), "content": ""}, result("21", name="get_weather"), user("?")],
    "call without content": [user(), {"role": "assistant", "tool_calls": [WEATHER]}, result("21")],
    "parallel calls": [user(), calls(WEATHER, NESTED), result("21"), result("done", "ghijkl456"), assistant("Both."),
                       user("More")],
    "calls in rounds": [system(), user(), calls(WEATHER), result("21"), calls(NESTED), result('["x"]', "ghijkl456"),
                        assistant("Done"), user("Again"), calls(WEATHER), result("22")],
    "call arguments as text": [user(), calls(call("get_weather", json.dumps({"city": "Zürich", "x": [1, {}]}),
                                                  "abcdef123")), result("3")],
    "call without arguments": [user(), calls(call("now", {}, "abcdef123")), result("noon")],
    "call without id": [user(), calls(call("get_weather", {"city": "Oslo"})), {"role": "tool", "content": "-3"}],
    "result of a list": [user(), calls(WEATHER), result([text_part("a"), text_part("b")])],
    "parts": [{"role": "user", "content": [text_part("Look: "), text_part("here")]}],
    "parts everywhere": [{"role": "system", "content": [text_part("Be kind.")]},
                         {"role": "user", "content": [text_part("Hi")]},
                         {"role": "assistant", "content": [text_part("Yes?")]}, user("Go")],
    "image": [{"role": "user", "content": [IMAGE, text_part("What is this?")]}],
    "image type": [{"role": "user", "content": [{"type": "image"}, text_part("This?")]}],
    "thoughts": [user("Hi"), {**assistant("Answer"), "reasoning_content": "Let me think.\n"}, user("And?")],
    "thoughts in text": [user("Hi"), assistant("<think>\nhm\n</think>\n\nAnswer"), user("And?")],
    "thoughts and call": [user("Hi"), {**calls(WEATHER), "reasoning_content": "Think.", "thinking": "Think."},
                          result("21")],
    "developer": [{"role": "developer", "content": "Be brief."}, user()],
    "two users": [user("One"), user("Two")],
    "assistant first": [assistant("Hi"), user("Hello")],
    "system in the middle": [user("Hi"), system("Now rhyme."), user("Go")],
    "two systems": [system("A"), system("B"), user("Go")],
    "system only": [system()],
    "unknown role": [{"role": "critic", "content": "Bad."}, user("Go")],
    "no content": [{"role": "user"}],
    "content is none": [{"role": "user", "content": None}],
    "names": [{**user("Hi"), "name": "ann"}, {**assistant("Yes"), "name": "bob"}, user("Go")],
    "prefix": [user("Hi"), {**assistant("Sure, "), "prefix": True}],
    "empty": [],
}

CITY = {"type": "string", "description": "A \"city\", e.g. 'Paris' <fr>"}
TOOL_WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city.\nNow.",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": CITY, "days": {"type": "integer", "minimum": 1, "default": 3},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}}}}
TOOL_PLAN = {"type": "function", "function": {
    "name": "plan", "description": "Plans é 日", "strict": True,
    "parameters": {"type": "object", "properties": {
        "steps": {"type": "array", "description": "steps", "items": {
            "type": "object", "properties": {"n": {"type": "number"}, "ok": {"type": ["boolean", "null"]}},
            "required": ["n"]}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "A note"},
        "kind": {"type": "array", "items": {"type": "string"}, "nullable": True}},
        "required": [], "additionalProperties": False}}}
TOOL_NOW = {"type": "function", "function": {"name": "now", "description": "The time",
                                             "parameters": {"type": "object", "properties": {}}}}
TOOL_BARE = {"type": "function", "function": {"name": "bare"}}
TOOLS = {"no tools": None, "a tool": [TOOL_WEATHER], "tools": [TOOL_WEATHER, TOOL_PLAN, TOOL_NOW]}

KWARGS = {
    "thinking": {"enable_thinking": True, "thinking": True},
    "no thinking": {"enable_thinking": False, "thinking": False},
    "date": {"date_string": "02 Jan 2025", "tools_in_user_message": False},
    "built-in tools": {"builtin_tools": ["brave_search", "code_interpreter"], "custom_tools": [TOOL_WEATHER]},
    "documents": {"documents": [{"title": "A", "text": "alpha", "doc_id": "1"}, {"title": "B", "text": "beta"}]},
    "effort": {"reasoning_effort": "high", "model_identity": "You are a test.", "thinking_budget": 512,
               "builtin_tools": ["browser", "python"]},
    "options": {"system_message": "S", "controls": {"length": "short"}, "citation_mode": "fast", "xml_tools": [TOOL_PLAN],
                "python_tools": [TOOL_PLAN], "keep_past_thinking": True, "clear_thinking": False},
    "bare tool": {"tools": [TOOL_BARE]},
}


def context(messages, **more):
    return {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>",
            "eos_token": "</s>", **more}


def contexts():
    """Returns (label, names) of every chat with and without tools and generation prompt, some with options."""
    made = []
    for chat, messages in CHATS.items():
        for tools_name, tools in TOOLS.items():
            made.append((f"{chat}, {tools_name}", context(messages, tools=tools)))
            made.append((f"{chat}, {tools_name}, no prompt",
                         context(messages, tools=tools, add_generation_prompt=False)))
    for option, names in KWARGS.items():
        for chat in ("user", "turns", "parallel calls", "thoughts", "thoughts and call", "calls in rounds"):
            made.append((f"{chat}, {option}", context(CHATS[chat], **names)))
            made.append((f"{chat}, {option}, tools",
                         context(CHATS[chat], **{"tools": TOOLS["tools"], **names})))
    return made
