// A model divided among devices answers with the bits of one device, while it morphs, and when clients leave.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { form, layers, settled, startForm, want } from './form.mjs';
import { writeRandomModel } from './random_model.mjs';
import { builtin, instrumented, program, random, Server, sleep, until } from './server.mjs';
import { storm } from './storm.mjs';

const shards = ['--max-tensor-parallel-size', '2'];
const groups = {
  'TP 2': ['--tensor-parallel-size', '2'],
  'PP 2': ['--pipeline-parallel-size', '2'],
  'PP 3, uneven': ['--stages', '3,9,4'],
  'TP 2 x PP 2': ['--tensor-parallel-size', '2', '--pipeline-parallel-size', '2', '--threads', '1'],
  'TP 4': ['--tensor-parallel-size', '4', '--threads', '1'],
  'PP 4': ['--pipeline-parallel-size', '4', '--threads', '1'],
  'two replicas': ['--data-parallel-size', '2', '--threads', '1'],
};

const some = (...names) => names.map((name) => [name, groups[name]]);

// Short and long prompts, shared beginnings, greedy and seeded draws, log-probabilities, structured output.
function requests(count) {
  const draw = random(11);
  const words = ['the', 'dog', 'ran', 'to', 'a', 'big', 'tree', 'and', 'Lily', 'said', 'it', 'was', 'red'];
  const text = (length) => Array.from({ length }, () => words[draw(words.length)]).join(' ');
  const shared = text(60);
  return Array.from({ length: count }, (_, i) => ({
    prompt: i % 4 === 0 ? `${shared} ${text(5)}` : text(i % 4 === 1 ? 300 : 10 + draw(20)),
    max_tokens: 12 + draw(24),
    temperature: i % 2 ? 0.9 : 0,
    seed: 100 + i,
    logprobs: i % 5 === 0 ? 2 : undefined,
    ...(i % 7 === 3 ? { response_format: { type: 'json_schema', json_schema: { name: 's', schema: {
      type: 'object', properties: { a: { type: 'integer' }, b: { type: 'boolean' } }, required: ['a', 'b'], additionalProperties: false } } } } : {}),
  }));
}

async function answer(server, request) {
  const response = await fetch(`${server.url}/v1/completions`, {
    method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(request),
  });
  const body = await response.json();
  assert.equal(response.status, 200, JSON.stringify(body));
  const { text, finish_reason, logprobs } = body.choices[0];
  return { text, finish_reason, logprobs };
}

const answers = (server, all) => Promise.all(all.map((request) => answer(server, request)));

// Runs `use` with a server, which must then stop cleanly, and which does not outlive a failure.
async function withServer(flags, use, path = builtin) {
  const server = await Server.startWith({ path }, ...flags);
  try {
    const result = await use(server);
    assert.equal(await server.stop(), 0, server.log);
    return result;
  } catch (error) {
    server.process.kill('SIGKILL');
    throw error;
  }
}

// KV for about ten sequences on a device, so that some are preempted where there is one. GROUP_REQUESTS
// says how many there are, which an instrumented server takes long for.
const small = ['--kv-cache-memory', '6MiB', '--max-num-batched-tokens', '128', '--max-model-len', '700'];

describe('groups of devices', () => {
  const all = requests(Number(process.env.GROUP_REQUESTS ?? 40));
  // Each division is tried with one of the precisions, and each precision with shards and with stages. An instrumented
  // server has the same kernels, and unit tests with the other divisions.
  for (const [dtype, divisions] of [
    [['--dtype', 'bf16'], some('TP 2', 'PP 3, uneven')],
    [['--dtype', 'w8a8', '--kv-cache-dtype', 'int8'], some('PP 2', 'TP 2 x PP 2')],
  ].slice(instrumented ? 1 : 0)) {
    it(`answer like one device: ${dtype.join(' ')}`, async () => {
      const flags = [...dtype, ...shards, ...small];
      const expected = await withServer(flags, (server) => answers(server, all));
      for (const [name, division] of divisions) {
        await withServer([...flags, ...division], async (server) => {
          assert.deepEqual(await answers(server, all), expected, name);
          assert.equal((await server.idleMetrics()).get('vllm:kv_cache_usage_perc'), 0, name);
        });
      }
    });
  }

  // A thread each, where the one device has two.
  for (const [dtype, divisions] of [
    [['--dtype', 'w8'], some('TP 4', 'two replicas')],
    [['--dtype', 'w4', '--kv-cache-dtype', 'int8'], some('PP 4')],
  ].slice(instrumented ? 1 : 0)) {
    it(`of four devices and of two replicas answer like one device: ${dtype.join(' ')}`, async () => {
      const flags = [...dtype, '--max-tensor-parallel-size', '4', ...small];
      const few = all.slice(0, 12);
      const expected = await withServer([...flags, '--threads', '2'], (server) => answers(server, few));
      for (const [name, division] of divisions) {
        await withServer([...flags, ...division], async (server) => {
          assert.deepEqual(await answers(server, few), expected, name);
        });
      }
    });
  }

  for (const [kind, divisions] of [
    [{ family: 'qwen2', kvHeads: 4 }, some('TP 4', 'PP 4')],
    [{ family: 'qwen3', kvHeads: 4, tied: true }, some('TP 2 x PP 2')],
  ]) {
    it(`answer like one device: ${kind.family}, ${kind.tied ? 'tied' : 'separate'} embeddings`, async () => {
      const folder = mkdtempSync(join(tmpdir(), 'protean-family-'));
      try {
        const path = writeRandomModel(join(folder, kind.family), 4, () => undefined, kind);
        const flags = ['--max-tensor-parallel-size', '4', '--kv-cache-memory', '1536KiB', '--max-model-len', '700'];
        const expected = await withServer(flags, (server) => answers(server, all), path);
        for (const [name, division] of divisions) {
          await withServer([...flags, ...division], async (server) => assert.deepEqual(await answers(server, all), expected, name), path);
        }
      } finally {
        rmSync(folder, { recursive: true, force: true });
      }
    });
  }

  it('morph while they answer, and report who holds what', async () => {
    for (const [name, division] of some('TP 2 x PP 2', 'PP 3, uneven')) {
      const flags = ['--dtype', 'bf16', ...shards, ...division, '--device-memory', '160MiB', '--admin-port', '0'];
      await withServer(flags, async (server) => {
        const admin = await operatorsOf(server);
        const running = answers(server, all.slice(0, 12));
        const { form: before } = await (await fetch(`${admin}/admin/form`)).json();
        for (const layers of ['w8', 'bf16', 'w4a8', 'bf16']) {
          const put = await fetch(`${admin}/admin/form`, { method: 'PUT', body: JSON.stringify({ layers }) });
          assert.equal(put.status, 202, `${name}: ${await put.text()}`);
          await reached(admin, layers);
        }
        await running;
        const { form } = await (await fetch(`${admin}/admin/form`)).json();
        assert.equal(form.stages.reduce((sum, stage) => sum + stage.layer_count, 0), 16);
        assert.equal(form.kv_blocks, before.kv_blocks, `${name}: all of its KV again`);
        assert.equal(form.tp_degree, name.startsWith('TP 2') ? 2 : 1);
      });
    }
  });

  it('know at their start what steps cost', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'protean-costs-'));
    const flags = [...small, '--threads', '1', '--variant-cache', folder];
    for (const [name, words] of [['TP 2', /fingerprint made in/], ['PP 2', /known from an earlier fingerprint/]]) {
      await withServer([...flags, ...groups[name]], async (server) => {
        await server.logged(words);
      });
    }
    rmSync(folder, { recursive: true, force: true });
  });

  it('lose nothing when clients leave at random', async () => {
    const draw = random(5);
    const times = instrumented ? 2 : 6;
    await withServer([...shards, ...small, ...groups['TP 2 x PP 2']], async (server) => {
      await Promise.all(Array.from({ length: 16 }, async (_, client) => {
        for (let i = 0; i < times; ++i) await mayLeave(server, all[(client * 6 + i) % all.length], draw);
      }));
      const idle = await server.idleMetrics();
      assert.equal(idle.get('vllm:num_requests_running'), 0);
      assert.equal(idle.get('vllm:num_requests_waiting'), 0);
    });
  });
});

// An operator asks for one form after another, mostly before the form before it is reached.
describe('a group of two devices that changes its form again and again', () => {
  for (const name of ['TP 2', 'PP 2']) {
    it(`answers with the same bits while its KV cache shrinks and grows, and survives a storm of forms: ${name}`, async () => {
      const cache = mkdtempSync(join(tmpdir(), 'protean-groups-'));
      const server = await startForm(cache, {}, ...shards, ...groups[name]);
      try {
        const { form: loaded } = await form(server);
        await resizeWhileAnswering(server, requests(8));
        assert.equal((await want(server, { release: true })).status, 202);
        assert.deepEqual((await settled(server)).form, loaded);
        await storm(server, { seconds: Number(process.env.MORPH_SECONDS ?? 2), streams: 8, seed: 3, layers });
      } finally {
        assert.equal(await server.stop(), 0, server.log);
        rmSync(cache, { recursive: true });
      }
    });
  }
});

// Asks the same requests until the KV cache has changed its size 10 times meanwhile.
async function resizeWhileAnswering(server, some) {
  const expected = await answers(server, some);
  const { form: { kv_blocks: blocks } } = await form(server);
  let done = false;
  const resizing = (async () => {
    for (let i = 0; !done; ++i) {
      const answered = await want(server, { kv_blocks: i % 2 === 0 ? 70 : blocks });
      assert.equal(answered.status, 202, JSON.stringify(answered));
      await sleep(30);
    }
  })();
  resizing.catch(() => { done = true; });  // it fails where it is awaited
  try {
    for (let round = 0, resizes = 0; resizes < 10 && !done; ++round) {
      assert.deepEqual(await answers(server, some), expected, `round ${round}`);
      resizes = (await form(server)).totals.kv_resizes;
      assert.ok(round < 100, `${resizes} changes of the KV cache in ${round} rounds`);
    }
  } finally {
    done = true;
    await resizing;
  }
}

// Sends a request, and every second time leaves before its answer is complete.
async function mayLeave(server, request, draw) {
  const leaves = draw(2) === 0;
  const controller = new AbortController();
  const timer = leaves ? setTimeout(() => controller.abort(), draw(150)) : undefined;
  try {
    const response = await fetch(`${server.url}/v1/completions`, {
      method: 'POST', headers: { 'content-type': 'application/json' }, signal: controller.signal,
      body: JSON.stringify({ model: 'builtin', ...request }),
    });
    assert.equal(response.status, 200);
    await response.text();
  } catch (error) {
    assert.ok(leaves, error);
  }
  clearTimeout(timer);
}

async function operatorsOf(server) {
  await server.logged(/operators' port: [\d.:]+/);
  return `http://${server.log.match(/operators' port: ([\d.:]+)/)[1]}`;
}

async function reached(admin, layers) {
  let now;
  await until(async () => {
    now = await (await fetch(`${admin}/admin/form`)).json();
    return now.form.text === now.wanted.text && now.form.layer_precision.every((one) => one === layers);
  }, () => JSON.stringify(now));
}

describe('devices', () => {
  let folder;
  before(() => { folder = mkdtempSync(join(tmpdir(), 'protean-devices-')); });
  after(() => rmSync(folder, { recursive: true, force: true }));
  const inspect = (...flags) => spawnSync(program, ['inspect', builtin, ...flags], { encoding: 'utf8' });

  it('are described by inspect', () => {
    const { stdout } = inspect('--devices', '2', '--threads', '1', '--stages', '9,7', '--kv-cache-memory', '8MiB');
    assert.match(stdout, /form at start +2 stages \(9, 7 layers\) x TP 1/);
    assert.match(stdout, /device 0 +1 thread/);
    assert.match(stdout, /device 1 +1 thread/);
    assert.match(stdout, /memory map +\d+ pages of \d/);
    assert.match(stdout, /device 0 +A+M+E+K+\.*\n +layers 0-8, embeddings: attention \d+, MLP \d+, embeddings \d+, KV \d+, free \d+ pages/);
    assert.match(stdout, /device 1 +A+M+E+K+\.*\n +layers 9-15, embeddings: /);
  });

  it('of all replicas are described, those that are alike together', () => {
    const { stdout } = inspect('--data-parallel-size', '2', '--stages', '9,7', '--kv-cache-memory', '8MiB');
    assert.match(stdout, /devices 0, 2 +A+M+E+K+\.*\n +layers 0-8, embeddings: /);
    assert.match(stdout, /devices 1, 3 +A+M+E+K+\.*\n +layers 9-15, embeddings: /);
    assert.match(inspect('--data-parallel-size', '2', '--kv-cache-memory', '8MiB').stdout, /devices 0, 1 +A+M+E+K+\.*\n/);
  });

  it('may need padding, which inspect says of known models', () => {
    const { stdout } = spawnSync(program, ['inspect', '--like', 'gpt-oss-20b', '--pages', '--json'], { encoding: 'utf8' });
    const [down, gateUp] = JSON.parse(stdout).tensors;
    assert.deepEqual([down.name, down.pages_tp1, down.pages_tp4], ['down', 253.125, 63.28125]);
    assert.deepEqual([gateUp.name, gateUp.pages_tp1, gateUp.pages_tp4], ['gate_up', 506.25, 126.5625]);
  });

  it('are refused in one line that says what would work', () => {
    const file = join(folder, 'devices.toml');
    writeFileSync(file, '[[device]]\ncpus = "0"\n[[device]]\ncpus = "0"\n');
    for (const [flags, words] of [
      [['--tensor-parallel-size', '8'], /--tensor-parallel-size 8: .* 4 KV heads: use 4/],
      [['--devices', '3', '--tensor-parallel-size', '2'], /--devices 3: TP 2 with 1 stage takes 2/],
      [['--stages', '10,7'], /these are 17 layers, the model has 16/],
      [['--devices', file], /CPU 0 belongs to two devices/],
      [['--devices', '2', '--device-memory', '4MiB'], /do not fit the 4\.00 MiB that --device-memory allows on a device: use --device-memory \d+MiB/],
    ]) {
      const { status, stderr } = inspect(...flags);
      assert.equal(status, 2, flags.join(' '));
      assert.match(stderr, /^protean: [^\n]+\n$/, flags.join(' '));
      assert.match(stderr, words, flags.join(' '));
    }
  });
});
