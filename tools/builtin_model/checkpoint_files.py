"""A model directory as Hugging Face lays it out: bf16 safetensors, configuration, tokenizer, chat template."""

import json
import pathlib
import shutil
import struct

import numpy
import torch

import model
import tokenizer


def _names(config):
    """(Hugging Face name, our tensor, its first row, its rows)."""
    yield "model.embed_tokens.weight", "embed", 0, config.vocabulary
    for i in range(config.layers):
        theirs, first = f"model.layers.{i}.", 0
        yield theirs + "input_layernorm.weight", f"{i}.norm1", 0, config.hidden
        for part, rows in zip("qkv", config.qkv_rows):
            yield f"{theirs}self_attn.{part}_proj.weight", f"{i}.qkv", first, rows
            first += rows
        yield theirs + "self_attn.o_proj.weight", f"{i}.o", 0, config.hidden
        yield theirs + "post_attention_layernorm.weight", f"{i}.norm2", 0, config.hidden
        yield theirs + "mlp.gate_proj.weight", f"{i}.gate_up", 0, config.ffn
        yield theirs + "mlp.up_proj.weight", f"{i}.gate_up", config.ffn, config.ffn
        yield theirs + "mlp.down_proj.weight", f"{i}.down", 0, config.hidden
    yield "model.norm.weight", "norm", 0, config.hidden


def _bf16_bytes(tensor):
    return tensor.detach().cpu().contiguous().to(torch.bfloat16).view(torch.int16).numpy().tobytes()


def write_safetensors(path, weights, config):
    header, pieces, at = {"__metadata__": {"format": "pt"}}, [], 0
    for theirs, ours, first, rows in _names(config):
        tensor = weights[ours][first:first + rows]
        pieces.append(_bf16_bytes(tensor))
        header[theirs] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, at + len(pieces[-1])]}
        at += len(pieces[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.writelines(pieces)


def write_config(folder, config):
    facts = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "vocab_size": config.vocabulary, "hidden_size": config.hidden, "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers, "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads, "head_dim": config.head_dim,
        "max_position_embeddings": config.context, "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta, "rope_scaling": None, "tie_word_embeddings": True,
        "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02,
        "bos_token_id": tokenizer.BOS, "eos_token_id": [tokenizer.EOS, tokenizer.END],
        "torch_dtype": "bfloat16", "use_cache": True,
    }
    _write_json(folder / "config.json", facts)
    _write_json(folder / "generation_config.json",
                {"bos_token_id": tokenizer.BOS, "eos_token_id": [tokenizer.EOS, tokenizer.END],
                 "do_sample": True, "temperature": 0.8, "top_p": 0.95})
    _write_json(folder / "tokenizer_config.json", tokenizer.tokenizer_config(config.context))


def _write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def export(folder, weights, config, tokenizer_json):
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", weights, config)
    write_config(folder, config)
    shutil.copyfile(tokenizer_json, folder / "tokenizer.json")


def read_config(folder):
    facts = json.loads(pathlib.Path(folder, "config.json").read_text(encoding="utf-8"))
    return model.Config(
        layers=facts["num_hidden_layers"], hidden=facts["hidden_size"], heads=facts["num_attention_heads"],
        kv_heads=facts["num_key_value_heads"], ffn=facts["intermediate_size"], vocabulary=facts["vocab_size"],
        context=facts["max_position_embeddings"], rope_theta=facts["rope_theta"], norm_eps=facts["rms_norm_eps"])


def read_weights(folder, config):
    """name -> float32 tensor, as model.views names them."""
    raw = pathlib.Path(folder, "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8:8 + length])
    weights = model.views(torch.empty(model.parameter_count(config)), config)
    for theirs, ours, first, rows in _names(config):
        entry = header[theirs]
        if entry["dtype"] != "BF16":
            raise SystemExit(f"{folder}: {theirs} is {entry['dtype']}; only what this program exported (BF16) is read")
        start, stop = entry["data_offsets"]
        bits = numpy.frombuffer(raw[8 + length + start:8 + length + stop], dtype="<u2").astype("<u4") << 16
        weights[ours][first:first + rows] = torch.from_numpy(bits.view("<f4").reshape(entry["shape"]).copy())
    return weights
