// Random answers under each schema of schemas/*.json validate with ajv, through the real server and
// without it, and values that ajv accepts are accepted by the grammar.

import { deepEqual, equal, match, ok } from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import test, { after, before, describe } from 'node:test';
import { fileURLToPath } from 'node:url';
import addFormats from 'ajv-formats';
import Ajv2020 from 'ajv/dist/2020.js';
import { writeRandomModel } from './random_model.mjs';
import { Server, skip as noModel } from './server.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const tool = process.env.PROTEAN_GRAMMAR_ANSWERS ?? resolve(here, '../../build/tests/grammar/grammar_answers');
const skip = existsSync(tool) ? false : `needs ${tool}; configure with -DPROTEAN_TESTS=ON`;

function schemas() {
  const folder = resolve(here, 'schemas');
  return readdirSync(folder).sort().flatMap((file) =>
    JSON.parse(readFileSync(resolve(folder, file), 'utf8')).map((schema, index) => ({ name: `${file} ${index}`, schema })));
}

function validator(schema) {
  const ajv = new Ajv2020({ strict: false, multipleOfPrecision: 9 });
  addFormats(ajv);
  return ajv.compile(schema);
}

function run(args, input) {
  const done = spawnSync(tool, args, { input: JSON.stringify(input), encoding: 'utf8', maxBuffer: 1 << 30 });
  equal(done.status, 0, done.stderr);
  return done.stdout.trimEnd().split('\n').map((line) => JSON.parse(line));
}

test('every answer to 200 schemas validates', { skip, timeout: 600_000 }, () => {
  const all = schemas();
  ok(all.length >= 200, `there are ${all.length} schemas`);
  const lines = run(['write', '25', process.env.SEED ?? '1'], all.map(({ schema }) => schema));
  let answers = 0;
  lines.forEach((line, index) => {
    const { name, schema } = all[index];
    equal(line.error, undefined, `${name} ${JSON.stringify(schema)}`);
    ok(line.answers.length >= 20, `${name}: only ${line.answers.length} of 25 answers ended`);
    const valid = validator(schema);
    for (const text of line.answers) {
      ok(valid(JSON.parse(text)), `${name} ${JSON.stringify(schema)}: ${text}: ${JSON.stringify(valid.errors)}`);
      answers += 1;
    }
  });
  ok(answers > 4000);
});

// SCHEMA_STRIDE=n tests every n-th schema, for slow machines.
const stride = Number(process.env.SCHEMA_STRIDE ?? 1);

describe('a server with random weights', { timeout: 600_000 }, () => {
  const scratch = mkdtempSync(join(tmpdir(), 'protean-schemas-'));
  const chatml = resolve(here, 'chatml.jinja');
  let server;
  let bias;
  before(async () => {
    const path = writeRandomModel(join(scratch, 'random'));
    server = await Server.startWith({ path }, '--chat-template', chatml, '--max-num-seqs', '64', '--tool-call-parser', 'qwen3_coder');
    // A bias towards closing tokens, without which random answers would hardly ever end.
    bias = {};
    for (const [text, by] of [['"', 6], ['}', 3], [']', 3], [',', 2]]) {
      const { tokens } = await (await post('/tokenize', { content: text })).json();
      equal(tokens.length, 1);
      bias[tokens[0]] = by;
    }
  });
  after(async () => {
    rmSync(scratch, { recursive: true, force: true });
    equal(await server?.stop(), 0, server?.log);
  });

  const post = (path, body) => fetch(server.url + path, { method: 'POST', body: JSON.stringify(body) });
  const ask = async (fields) => {
    const messages = [{ role: 'user', content: 'Go on.' }];
    const response = await post('/v1/chat/completions', { messages, temperature: 1, logit_bias: bias, max_tokens: 400, ...fields });
    const body = await response.json();
    equal(response.status, 200, JSON.stringify([fields, body]));
    return body.choices;
  };
  const form = (schema) => ({ response_format: { type: 'json_schema', json_schema: { name: 'answer', schema } } });

  test('every finished answer to every schema validates', async () => {
    const all = schemas().filter((_, index) => index % stride === 0);
    ok(all.length >= 200 / stride, `there are ${all.length} schemas`);
    const answers = await Promise.all(all.map(({ schema }, index) => ask({ ...form(schema), seed: index })));
    let finished = 0;
    all.forEach(({ name, schema }, index) => {
      const [{ message, finish_reason: reason }] = answers[index];
      if (reason !== 'stop') {
        equal(reason, 'length', name);
        return;
      }
      finished += 1;
      const valid = validator(schema);
      ok(valid(JSON.parse(message.content)), `${name} ${JSON.stringify(schema)}: ${message.content}: ${JSON.stringify(valid.errors)}`);
    });
    console.log(`schemas: ${finished} of ${all.length} answers ended by themselves, all of them valid`);
    ok(finished > 0.8 * all.length, `only ${finished} of ${all.length} ended`);
  });

  test('each of n choices keeps to the form by itself', async () => {
    const schema = {
      type: 'object', required: ['id', 'kind', 'tags'],
      properties: {
        id: { type: 'integer', minimum: 10, maximum: 99999 }, kind: { enum: ['circle', 'square', 'triangle'] },
        tags: { type: 'array', items: { type: 'string', maxLength: 8 }, minItems: 1, maxItems: 4 },
      },
    };
    const valid = validator(schema);
    for (let seed = 0; seed < 4; ++seed) {
      const objects = (await ask({ ...form(schema), n: 3, seed })).map(({ message, finish_reason: reason }) => {
        equal(reason, 'stop', message.content);
        ok(valid(JSON.parse(message.content)), message.content);
        return message.content;
      });
      equal(new Set(objects).size, 3, 'and each is another');
      const words = (await ask({ structured_outputs: { regex: '[a-f]{3,9}(-[0-9]{2})+!' }, n: 3, seed })).map((choice) => choice.message.content);
      for (const word of words) match(word, /^[a-f]{3,9}(-[0-9]{2})+!$/);
      equal(new Set(words).size, 3);
    }
  });

  test('a named function is called once, and its arguments between tags satisfy the schema', async () => {
    const parameters = {
      type: 'object', required: ['city', 'days'], additionalProperties: false,
      properties: {
        city: { type: 'string', minLength: 1, maxLength: 20 }, days: { type: 'integer', minimum: 1, maximum: 14 },
        kinds: { type: 'array', items: { enum: ['rain', 'sun'] }, maxItems: 3 }, note: { type: ['string', 'null'], maxLength: 9 },
      },
    };
    const valid = validator(parameters);
    const tools = [{ type: 'function', function: { name: 'get_weather', parameters } }];
    const answers = await Promise.all(Array.from({ length: 12 }, (_, seed) =>
      ask({ tools, tool_choice: { type: 'function', function: { name: 'get_weather' } }, seed })));
    const seen = new Set();
    for (const [{ message, finish_reason: reason }] of answers) {
      equal(reason, 'tool_calls', JSON.stringify(message));
      equal(message.tool_calls.length, 1);
      const call = message.tool_calls[0].function;
      equal(call.name, 'get_weather');
      const given = JSON.parse(call.arguments);
      ok(valid(given), `${call.arguments}: ${JSON.stringify(valid.errors)}`);
      Object.keys(given).forEach((key) => seen.add(key));
    }
    deepEqual([...seen].sort(), ['city', 'days', 'kinds', 'note']);
  });
});

test('a model without a token for "{" refuses what needs one', { skip: noModel, timeout: 120_000 }, async () => {
  const server = await Server.start();
  const ask = (fields) => fetch(`${server.url}/v1/completions`, {
    method: 'POST', body: JSON.stringify({ prompt: 'Once', max_tokens: 20, temperature: 1, seed: 1, ...fields }),
  });
  const refused = await ask({ guided_json: { type: 'object' } });
  equal(refused.status, 400);
  const { error } = await refused.json();
  equal(error.param, 'guided_json');
  match(error.message, /no token of it holds "\{"/);
  for (const fields of [{ guided_json: { type: ['integer', 'object'], minimum: 0, maximum: 99 } }, { guided_regex: '[0-9]{1,2}' }]) {
    const [{ text, finish_reason: reason }] = (await (await ask(fields)).json()).choices;
    match(text, /^\d{1,2}$/);
    equal(reason, 'stop');
  }
  equal(await server.stop(), 0, server.log);
});

// Returns a value with small changes, near the schema of the original.
function changed(value, random) {
  if (Array.isArray(value)) {
    const list = value.map((item) => (random() < 0.3 ? changed(item, random) : item));
    return random() < 0.3 ? list.slice(1) : random() < 0.5 ? [...list, 1] : list;
  }
  if (value !== null && typeof value === 'object') {
    return Object.fromEntries(Object.entries(value).filter(() => random() < 0.85)
      .map(([key, item]) => [key, random() < 0.4 ? changed(item, random) : item]));
  }
  if (typeof value === 'number') return Math.round(value * 4 * random()) / 4;
  if (typeof value === 'string') return random() < 0.5 ? [...value].slice(1).join('') : `${value}a`;
  return [null, true, 'x', 0][Math.floor(random() * 4)];
}

test('the grammar takes what ajv takes', { skip, timeout: 600_000 }, () => {
  let state = 12345;
  const random = () => ((state = (state * 1103515245 + 12345) % 2147483648) / 2147483648);
  const all = schemas();
  const lines = run(['write', '12', '5'], all.map(({ schema }) => schema));
  const values = lines.map((line) => line.answers.map((text) => JSON.parse(text)));
  const pairs = [];
  all.forEach(({ schema }, index) => {
    const valid = validator(schema);
    const own = values[index].flatMap((value) => [value, changed(value, random), changed(value, random)]);
    const others = Array.from({ length: 20 }, () => {
      const list = values[Math.floor(random() * values.length)];
      return list[Math.floor(random() * list.length)] ?? null;
    });
    for (const value of [...own, ...others]) {
      const text = JSON.stringify(value);
      if (withinLimits(value, schema)) pairs.push({ schema, text, valid: valid(value) });
    }
  });
  const taken = run(['match'], pairs.map(({ schema, text }) => [schema, text]));
  const wrong = pairs.filter(({ valid }, index) => valid !== taken[index]);
  deepEqual(wrong.slice(0, 5), [], `${wrong.length} of ${pairs.length} are judged differently`);
  ok(pairs.filter(({ valid }) => valid).length > 2000);
  ok(pairs.filter(({ valid }) => !valid).length > 2000);
});

// Returns false where the grammar accepts less than the schema by design: other orders of properties,
// other types than a schema's keywords are about if it states none, long numbers, and formats.
function withinLimits(value, schema) {
  const text = JSON.stringify(schema);
  if (/"(format|uniqueItems|minProperties)"/.test(text)) return false;
  if (/[0-9.]{16}|e[-+]/.test(JSON.stringify(value))) return false;
  return ordered(value, schema, schema) && typed(schema);
}

const speaksOf = ['properties', 'required', 'items', 'prefixItems', 'minimum', 'maximum', 'minLength', 'maxLength',
  'pattern', 'additionalProperties', 'patternProperties'];

function typed(schema) {
  if (schema === null || typeof schema !== 'object') return true;
  if (!Array.isArray(schema) && !('type' in schema) && speaksOf.some((keyword) => keyword in schema)) return false;
  return Object.entries(schema).every(([key, part]) => key === 'const' || key === 'enum' || typed(part));
}

// Returns true if names are in the order of each `properties` and `required` of the schema, with other
// names last.
function ordered(value, schema, root) {
  const orders = [];
  const collect = (part) => {
    if (part === null || typeof part !== 'object') return;
    if (part.properties && !Array.isArray(part.properties)) orders.push(Object.keys(part.properties));
    if (Array.isArray(part.required)) orders.push(part.required);
    Object.values(part).forEach(collect);
  };
  collect(root);
  const check = (item) => {
    if (item === null || typeof item !== 'object') return true;
    const names = Array.isArray(item) ? [] : Object.keys(item);
    const inOrder = orders.every((order) => {
      const places = names.map((name) => order.indexOf(name)).map((place) => (place < 0 ? order.length : place));
      return places.every((place, i) => i === 0 || places[i - 1] <= place);
    });
    return inOrder && Object.values(item).every(check);
  };
  return check(value);
}
