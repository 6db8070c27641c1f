// Measures how much answers with JSON schemas slow down plain streams in the same batch: the time
// between tokens of plain streams while as many other answers run, which either follow the schemas of
// tests/e2e or are plain ones of the same lengths.
//   node bench/schema_interference.mjs [MODEL] [STREAMS] [ROUNDS] [TOKENS]

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { builtin, root, Server } from '../tests/e2e/server.mjs';

const [path = builtin, ...numbers] = process.argv.slice(2);
const [streams = 4, rounds = 6, tokens = 300] = numbers.map(Number);
const folder = join(root, 'tests/e2e/schemas');
const schemas = readdirSync(folder).flatMap((file) => JSON.parse(readFileSync(join(folder, file), 'utf8')));
const server = await Server.startWith({ path }, '--max-model-len', '1024');

const ask = (body) =>
  fetch(`${server.url}/v1/completions`, {
    method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ temperature: 1, ...body }),
  });

async function stream(seed, gapsMs) {
  const prompt = `${seed} Once upon a time`;
  const answer = await ask({ prompt, max_tokens: tokens, ignore_eos: true, seed, stream: true });
  const decoder = new TextDecoder();
  let last;
  for await (const chunk of answer.body) {
    const now = performance.now();
    const count = decoder.decode(chunk).split('data: {').length - 1;
    if (last !== undefined && count > 0) gapsMs.push((now - last) / count);
    last = now;
  }
}

let asked = 0;
const lengths = [];
async function keepAsking(kind, going) {
  while (going.on) {
    const index = asked++;
    const schema = { name: 's', schema: schemas[index % schemas.length] };
    const kept = kind === 'schemas'
      ? { max_tokens: 200, response_format: { type: 'json_schema', json_schema: schema } }
      : { max_tokens: lengths[index % lengths.length], ignore_eos: true };
    const answer = await (await ask({ prompt: `${index} x`, seed: index, ...kept })).json();
    if (answer.error) throw new Error(answer.error.message);
    if (kind === 'schemas') lengths.push(answer.usage.completion_tokens);
  }
}

async function phase(kind) {
  const gapsMs = [];
  const going = { on: true };
  const others = Array.from({ length: streams }, () => keepAsking(kind, going));
  await Promise.all(Array.from({ length: streams }, (_, seed) => stream(seed, gapsMs)));
  going.on = false;
  await Promise.all(others);
  return gapsMs;
}

const quantile = (values, q) => [...values].sort((a, b) => a - b)[Math.floor(q * (values.length - 1))];
const statistics = {
  median: (gaps) => quantile(gaps, 0.5),
  mean: (gaps) => gaps.reduce((sum, gap) => sum + gap) / gaps.length,
  P99: (gaps) => quantile(gaps, 0.99),
};
await phase('schemas'); // not measured: computes the masks of all schemas
const runs = { plain: [], schemas: [] };
for (let round = 0; round < rounds; ++round) {
  for (const kind of ['plain', 'schemas']) runs[kind].push(await phase(kind));
}
for (const [name, statistic] of Object.entries(statistics)) {
  const [plain, withSchemas] = [runs.plain, runs.schemas].map((all) => quantile(all.map(statistic), 0.5));
  console.log(`${name.padEnd(8)}${plain.toFixed(2)} ms with plain answers, ${withSchemas.toFixed(2)} ms with schemas: ` +
    `ratio ${(withSchemas / plain).toFixed(3)}`);
}
await server.stop();
