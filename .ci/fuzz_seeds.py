#!/usr/bin/env python3
"""Writes small valid inputs for every fuzzer: fuzz_seeds.py FOLDER makes FOLDER/NAME_fuzz/*.

A fuzzer that starts from nothing spends its time on the first bytes; from a file that loads it
reaches the code behind the checks.
"""

import json
import struct
import sys
from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 4, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": [2, 3],
}
ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}

TOKENIZER = {
    "version": "1.0",
    "added_tokens": [{"id": 0, "content": "<s>", "special": True, "single_word": False, "lstrip": False,
                      "rstrip": False, "normalized": False}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {
        "type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    "pre_tokenizer": None,
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                                                {"Sequence": {"id": "A", "type_id": 0}}],
                       "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "BPE", "unk_token": "<s>", "byte_fallback": False, "ignore_merges": False,
              "vocab": {"<s>": 0, "h": 1, "e": 2, "he": 3, "\u2581": 4}, "merges": [["h", "e"]]},
}
BYTE_LEVEL = {
    "version": "1.0", "added_tokens": [], "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r"(?i:'s|'t)|\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"},
         "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3}, "merges": ["a b"]},
}

CHAT = {"model": "m", "messages": [{"role": "system", "content": "s"},
                                   {"role": "user", "content": [{"type": "text", "text": "hi \u00e9"}]}],
        "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "seed": -1, "n": 1,
        "stop": ["a", "b"], "stop_token_ids": [2], "stream": True, "stream_options": {"include_usage": True}}
COMPLETION = {"prompt": [[1, 2], [3]], "max_tokens": 1, "stop": "x", "ignore_eos": True, "logit_bias": {},
              "include_stop_str_in_output": True, "add_special_tokens": False}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
MESSAGES = {"model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": "q"},
                         {"role": "assistant", "content": [{"type": "text", "text": "a"},
                                                           {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
                         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "is_error": True,
                                                       "content": [{"type": "text", "text": "r"}]}]},
                         {"role": "assistant", "content": "b"}],
            "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA, "strict": True}],
            "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True}, "stop_sequences": ["x"],
            "thinking": {"type": "disabled"}, "metadata": {"user_id": "u"}, "stream": True}
RESPONSES = {"instructions": "s", "max_output_tokens": 5, "metadata": {"k": "v"}, "store": True, "top_logprobs": 2,
             "input": [{"role": "developer", "content": [{"type": "input_text", "text": "q"}]},
                       {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
                       {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                       {"type": "function_call_output", "call_id": "c", "output": "r"}],
             "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": None}],
             "tool_choice": {"type": "function", "name": "f"}, "include": ["message.output_text.logprobs"]}
FORMATTED = {"input": "q", "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
             "reasoning": {"effort": "low"}, "truncation": "disabled", "stream_options": {"include_obfuscation": False}}

TEMPLATES = [
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + (m.content or '') | trim + '<|im_end|>\\n' }}"
    "{%- endfor %}{% if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}",
    "{%- macro show(x, depth=0) -%}{{ x | tojson(indent=2) }}{%- endmacro -%}{% set ns = namespace(n=0, last=none) %}"
    "{%- for m in messages[::-1] if m.role not in ['system'] %}{% set ns.n = ns.n + loop.index0 * 2 %}"
    "{{ loop.first ~ loop.last ~ show(m.tool_calls | default([], true)) }}{% else %}none{% endfor %}",
    "{% if tools is defined and tools is not none and tools | length > 0 %}{{ tools | map(attribute='function.name') "
    "| join(', ') | upper | replace('A', 'b') }}{% elif not messages %}{{ raise_exception('no messages') }}{% endif %}"
    "{{ strftime_now('%d %b %Y') }}{# a comment #}{{ bos_token.split('<')[1:][0].startswith('s') and 7 // 2 ** 2 % 3 }}",
]

# The first byte: the format, and in steps of six how many of the next are lengths of pieces.
ANSWERS = [
    b'\x01Hi.\n<tool_call>\n{"name": "f", "arguments": {"a": "\\u00e9\\n", "b": [1, 2.5e3, true, null]}}\n</tool_call>\n'
    b'<tool_call>{"arguments": "{\\"a\\": 1}", "name": "get_weather"}</tool_call>',
    b'\x14\x03\x01\x05<|python_tag|>{"type": "function", "name": "f", "parameters": {}}; {"name": "f", "parameters": {}}',
    b'\x03[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "x"}, {"name": "f", "arguments": {}}]',
    b'\x03[TOOL_CALLS]f[CALL_ID]x[ARGS]{"a": 1}[TOOL_CALLS]f{}',
    b'\x04Hi.\n<tool_call>\n<function=f>\n<parameter=s>\na "b"\n</parameter>\n<parameter=n>\n[1, {}]\n</parameter>\n'
    b'</function>\n</tool_call><tool_call><function=get_weather></function></tool_call>',
    b'\x05<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a\n</arg_value>\n<arg_key>n</arg_key><arg_value>2.5</arg_value>\n'
    b'</tool_call>\n<tool_call>get_weather</tool_call>',
]


def gguf_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_value(value):
    """Type and value; lists are of strings, floats or int32."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_string(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    kinds = {str: (8, gguf_string), float: (6, lambda x: struct.pack("<f", x)), int: (5, lambda x: struct.pack("<i", x))}
    kind, write = kinds[type(value[0])]
    return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(map(write, value))


def gguf():
    width, q8_0, f32 = 32, 8, 0
    meta = {
        "general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": width,
        "llama.feed_forward_length": width, "llama.attention.head_count": 1, "llama.attention.head_count_kv": 1,
        "llama.context_length": 64, "llama.attention.layer_norm_rms_epsilon": 1e-6, "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a"],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -1.0], "tokenizer.ggml.token_type": [2, 3, 3, 1],
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
    }
    shapes = {"token_embd.weight": (q8_0, [width, 4]), "output_norm.weight": (f32, [width]),
              "blk.0.attn_norm.weight": (f32, [width]), "blk.0.ffn_norm.weight": (f32, [width])}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{name}.weight"] = (q8_0, [width, width])
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(meta))
    head += b"".join(gguf_string(key) + gguf_value(value) for key, value in meta.items())
    body = b""
    for name, (kind, shape) in shapes.items():
        rows = shape[1] if len(shape) > 1 else 1
        head += gguf_string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", kind, len(body))
        data = struct.pack(f"<{width}f", *[1.0] * width) if kind == f32 else (b"\x00\x3c" + bytes(range(32))) * rows
        body += data + b"\0" * (-len(data) % 32)
    return head + b"\0" * (-len(head) % 32) + body


def safetensors():
    header = json.dumps({"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
                         "b": {"dtype": "BF16", "shape": [2], "data_offsets": [8, 12]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + bytes(12)


def sentencepiece():
    """ModelProto: pieces (1), trainer (2: BPE, byte fallback off), normalizer (3: identity)."""
    def field(number, data):
        return bytes([number << 3 | 2, len(data)]) + data
    pieces = [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("\u2581", 1), ("a", 1), ("b", 1), ("ab", 1)]
    model = b"".join(field(1, field(1, text.encode()) + bytes([0x15]) + struct.pack("<f", -float(i)) + bytes([0x18, kind]))
                     for i, (text, kind) in enumerate(pieces))
    return model + field(2, bytes([0x18, 2])) + field(3, field(1, b"identity"))


# The first byte chooses the parser, the second the size of pieces.
LOADTEST = [kind + b"\x05" + data for kind, data in [
    (b"\0", b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"),
    (b"\0", b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,472,18,490,API log\n"),
    (b"\0", b"num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n74,918,992,0.08\n"),
    (b"\0", b'{"timestamp": 27, "input_length": 600, "output_length": 52, "hash_ids": [3, 4]}\n'),
    (b"\0", b'{"week1_min": [{"t": 0, "tps": 30}, {"t": 3, "tps": 60}], "daily": [{"req": 10, "tok": 150}]}'),
    (b"\1", b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
             b'2d\r\ndata: {"choices":[{"text":"a"}]}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n'),
    (b"\1", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    (b"\1", b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 23\r\n\r\n{\"error\":{\"message\":1}}"),
    (b"\2", b'{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3}}'),
    (b"\3", b'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:num_requests_running 3 1700000\n'),
    (b"\4", b"0,2.5,31.7,Weibull,0.27,0.1\n600,0,0,,0,0\n\0"
             b'{"0": {"input_tokens": "{13: 0.25, 14: 0.75}", "output_tokens": "{1: 2.0}"}}'),
    (b"\5", b'{"prompt": "b", "output_tokens": 3}\n'),
]]

# The first byte chooses between a listing, an index, a name and a location.
LISTINGS = [
    b'\0{"sha":"' + b"1" * 40 + b'","siblings":[{"rfilename":"config.json","size":3,"blobId":"' + b"a" * 40 + b'"},'
    b'{"rfilename":"model.safetensors","lfs":{"sha256":"' + b"b" * 64 + b'","size":9}},{"rfilename":"x/m-Q4_K_M.gguf"}]}',
    b'\1{"weight_map":{"a":"model-00001-of-00002.safetensors"}}', b"\2org/name:Q4_K_M@refs/pr/1",
    b"\3https://storage.test/x?signature=%2F&name=\"a b\"", b"\3../b#c",
]

# The first byte says what the rest is, the next seven drive the answer.
GRAMMARS = [
    b"\0abcdefg(a|[^\\d]b{2,4})*?\\.$", b"\1abcdefg<tool_call>",
    b'\2abcdefg{"type":"object","properties":{"a":{"type":"integer","minimum":-3,"multipleOf":2}},"required":["a"],'
    b'"additionalProperties":{"$ref":"#"},"maxProperties":3}',
    b'\6abcdefg{"anyOf":[{"type":"array","prefixItems":[{"const":[1]}],"items":{"$ref":"#"},"minItems":2},'
    b'{"type":"string","pattern":"^a+$","maxLength":4},{"enum":["x",null]},{"format":"date"}]}',
    b'\3abcdefg{"oneOf":[{"properties":{"t":{"const":1}},"required":["t"],"type":"object"},{"type":"null"}],'
    b'"$defs":{"x":{"patternProperties":{"^a":true},"propertyNames":{"minLength":2}}}}',
]


def main(root):
    def text(value):
        return json.dumps(value, ensure_ascii=False).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: 1\r\n"
    seeds = {
        "request_reader": [
            (head + "Content-Length: 2\r\n\r\n{}GET /health HTTP/1.1\r\nHost: x\r\n\r\n").encode(),
            (head + "Transfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\nT: t\r\n\r\n").encode()],
        "gguf": [gguf()],
        "safetensors": [safetensors()],
        # Of an even length: the fuzzer computes the checksum.
        "variant_file": [b"PROTEANV" + struct.pack("<IIII16xQQ", 1, 3, 1, 4, 4096, 7)],
        "hf_config": [text(CONFIG), text({**CONFIG, "rope_scaling": ROPE})],
        "tokenizer_json": [text(TOKENIZER), text(BYTE_LEVEL)],
        "sentencepiece_model": [sentencepiece()],
        "template": [template.encode() for template in TEMPLATES],
        "tool_calls": ANSWERS,
        "grammar": GRAMMARS,
        "openai_call": [text(CHAT), text(COMPLETION)],
        "loadtest": LOADTEST,
        "repo_listing": LISTINGS,
        "dialect_call": [text(MESSAGES), text(RESPONSES), text(FORMATTED)],
    }
    for name, inputs in seeds.items():
        folder = Path(root, f"{name}_fuzz")
        folder.mkdir(parents=True, exist_ok=True)
        for i, data in enumerate(inputs):
            (folder / str(i)).write_bytes(data)


if __name__ == "__main__":
    main(sys.argv[1])
