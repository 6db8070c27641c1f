// A model with random weights and the tokenizer of the built-in one: it knows nothing, so that what
// its answers keep to is the server's doing.

import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { builtin } from './server.mjs';

const size = { hidden: 64, ffn: 128, heads: 4, kvHeads: 2, headDim: 16, vocab: 4096 };

// mulberry32: the same numbers everywhere.
function randomNumbers(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

const number = new DataView(new ArrayBuffer(4));
function bf16(value) {
  number.setFloat32(0, value);
  return number.getUint16(0);
}

// Llama, and what others add to it: biases of queries, keys and values, or norms of queries and keys.
const families = {
  llama: { architecture: 'LlamaForCausalLM' },
  qwen2: { architecture: 'Qwen2ForCausalLM', bias: true },
  qwen3: { architecture: 'Qwen3ForCausalLM', norm: true },
};

function tensors(layers, { family = 'llama', tied = false, kvHeads = size.kvHeads }) {
  const { hidden, ffn, heads, headDim, vocab } = size;
  const all = { 'model.embed_tokens.weight': [vocab, hidden], 'model.norm.weight': [hidden] };
  if (!tied) all['lm_head.weight'] = [vocab, hidden];
  for (let layer = 0; layer < layers; ++layer) {
    Object.assign(all, Object.fromEntries(Object.entries({
      'input_layernorm': [hidden], 'post_attention_layernorm': [hidden],
      'self_attn.q_proj': [heads * headDim, hidden], 'self_attn.k_proj': [kvHeads * headDim, hidden],
      'self_attn.v_proj': [kvHeads * headDim, hidden], 'self_attn.o_proj': [hidden, heads * headDim],
      'mlp.gate_proj': [ffn, hidden], 'mlp.up_proj': [ffn, hidden], 'mlp.down_proj': [hidden, ffn],
      ...(families[family].norm ? { 'self_attn.q_norm': [headDim], 'self_attn.k_norm': [headDim] } : {}),
    }).map(([name, shape]) => [`model.layers.${layer}.${name}.weight`, shape])));
    if (families[family].bias) {
      for (const [name, count] of [['q', heads], ['k', kvHeads], ['v', kvHeads]]) {
        all[`model.layers.${layer}.self_attn.${name}_proj.bias`] = [count * headDim];
      }
    }
  }
  return all;
}

// Writes the checkpoint into a new folder, which it returns. Norms are 1; all else is uniform, such
// that logits of different tokens are about 1 apart. `change(name, i)` may give another value for
// element i of a tensor. `kind` has another family, tied embeddings, or another number of KV heads.
export function writeRandomModel(folder, layers = 2, change = () => undefined, kind = {}) {
  mkdirSync(folder);
  for (const file of ['tokenizer.json', 'tokenizer_config.json', 'generation_config.json']) {
    copyFileSync(join(builtin, file), join(folder, file));
  }
  writeFileSync(join(folder, 'config.json'), JSON.stringify({
    ...JSON.parse(readFileSync(join(builtin, 'config.json'), 'utf8')),
    architectures: [families[kind.family ?? 'llama'].architecture], model_type: kind.family ?? 'llama',
    hidden_size: size.hidden, intermediate_size: size.ffn, num_hidden_layers: layers, num_attention_heads: size.heads,
    num_key_value_heads: kind.kvHeads ?? size.kvHeads, head_dim: size.headDim, vocab_size: size.vocab,
    tie_word_embeddings: kind.tied ?? false,
    max_position_embeddings: 2048,
  }));
  const random = randomNumbers(1);
  const header = {};
  const pieces = [];
  let offset = 0;
  for (const [name, shape] of Object.entries(tensors(layers, kind))) {
    const values = new Uint16Array(shape.reduce((a, b) => a * b));
    for (let i = 0; i < values.length; ++i) values[i] = bf16(change(name, i) ?? (name.includes('norm') ? 1 : (random() - 0.5) * 0.5));
    header[name] = { dtype: 'BF16', shape, data_offsets: [offset, offset + values.byteLength] };
    pieces.push(Buffer.from(values.buffer));
    offset += values.byteLength;
  }
  const text = JSON.stringify(header);
  const head = Buffer.alloc(8);
  head.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(join(folder, 'model.safetensors'), Buffer.concat([head, Buffer.from(text), ...pieces]));
  return folder;
}
