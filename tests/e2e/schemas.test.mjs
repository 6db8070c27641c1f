// What a model that knows nothing writes under each schema of schemas/*.json, judged by ajv; and
// that values ajv takes are taken here, too. `answers` is also for tests of the server.

import { deepEqual, equal, ok } from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import addFormats from 'ajv-formats';
import Ajv2020 from 'ajv/dist/2020.js';

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

// Values near a schema: those of other schemas' answers, and small changes of its own.
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

// Where the grammar says less than the schema by design: the order of properties, a schema without
// a type, which is read as the type its keywords are for, long numbers, and the narrower formats.
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

// Names in the order of some `properties` of the schema, those it does not have last.
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
