// protean serve --intent: the form that a server starts in is the one that protean plan chooses. PUT /admin/intent:
// a model comes to be served for another intent while it answers.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, describe, it } from 'node:test';
import { editedCache } from './edited_costs.mjs';
import { builtin, instrumented, program, Server, sleep, until } from './server.mjs';

let scratch;
before(() => { scratch = mkdtempSync(join(tmpdir(), 'protean-intent-')); });
after(() => rmSync(scratch, { recursive: true, force: true }));
const cache = () => ['--variant-cache', join(scratch, 'cache')];

describe('protean serve --intent', () => {
  it('serves the smallest form for min-memory', async () => {
    const planned = spawnSync(program, ['plan', builtin, ...cache(), '--devices', '2', '--intent', 'min-memory', '--json'],
      { encoding: 'utf8' });
    assert.equal(planned.status, 0, planned.stderr);
    const loadable = JSON.parse(planned.stdout).configurations.filter((one) => one.pruning === 'none' && one.method === 'rtn');
    const least = Math.min(...loadable.map((one) => one.memory_bytes));
    const names = loadable.filter((one) => one.memory_bytes === least).map((one) => one.name);
    const server = await Server.startWith({ path: ['--model', `story=${builtin}`] }, ...cache(), '--devices', '2', '--intent', 'story=min-memory');
    try {
      await server.logged(/intent min-memory: 1 of 2 devices, TP 1 x PP 1, w4(a8)?, KV int8/);
      assert.ok(names.some((name) => server.log.includes(name)), `${names} in ${server.log}`);
      await until(async () => (await fetch(`${server.url}/health`)).status === 200, () => server.log);
      const answer = await fetch(`${server.url}/v1/completions`, {
        method: 'POST', headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ prompt: 'The', max_tokens: 4 }),
      });
      assert.equal(answer.status, 200);
    } finally {
      await server.stop();
    }
  });

  // With sanitizers, estimates take half a minute, and PUT /admin/intent makes them too.
  it('plans with the flags of protean plan, and keeps to --device-memory', { skip: instrumented }, async () => {
    const plan = (...flags) => JSON.parse(spawnSync(program, ['plan', builtin, ...cache(), '--intent', 'min-latency', ...flags, '--json'],
      { encoding: 'utf8' }).stdout);
    const flags = ['--batch', '3', '--prompt-tokens', '100', '--output-tokens', '20', '--cost', 'device-time', '--price', '3', '--placement', 'packing', '--theta', '0.7'];
    const planned = plan(...flags);
    const loadable = planned.configurations.filter((one) => one.pruning === 'none' && one.method === 'rtn');
    const bytes = loadable.map((one) => one.device_memory_bytes).sort((a, b) => a - b);
    // Room for some configurations, but with steps of 512 tokens only for those that need far less.
    const bound = bytes[Math.floor(bytes.length / 2)];
    const server = await Server.startBuiltin(...cache(), '--admin-port', '0', '--intent', 'min-latency', ...flags, '--device-memory', `${Math.ceil(bound / 1024)}KiB`,
      '--max-num-batched-tokens', '256', '--max-num-seqs', '4');
    try {
      await server.logged(/operators' port: (\S+)/);
      const admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
      await until(async () => (await fetch(`${server.url}/health`)).status === 200, () => server.log);
      const served = await (await fetch(`${admin}/admin/intent/plan`)).json();
      for (const field of ['batch', 'prompt_tokens', 'output_tokens', 'cost_formula', 'placement']) assert.equal(served[field], planned[field], field);
      const alone = planned.configurations.find(({ name }) => name === served.choice.name);
      assert.ok(Math.abs(served.choice.cost / alone.cost - 1) < 1e-9, `${served.choice.cost} and ${alone.cost}`);  // both were read from text
      assert.ok(served.choice.device_memory_bytes <= bound, JSON.stringify(served.choice));
      assert.ok(served.configurations.some(({ fits }) => !fits));
      const { models } = await (await fetch(`${admin}/admin/models`)).json();
      assert.ok(models[0].device_bytes <= Math.ceil(bound / 1024) * 1024, JSON.stringify(models));
    } finally {
      await server.stop();
    }
  });

  for (const [flags, words] of [
    [['--intent', 'min-latancy'], /did you mean min-latency\?/],
    [['--intent', 'min-cost', '--dtype', 'w8'], /--intent min-cost chooses precisions and parallelism: remove --dtype/],
    [['--intent', 'latency-slo=1us'], /a time above 0 in ms or s/],
    [['--intent', 'latency-slo=0.001ms'], /no configuration keeps latency-slo=0\.001ms: the nearest, /],
  ]) {
    it(`refuses ${flags.join(' ')}`, () => {
      const { status, stderr } = spawnSync(program, ['serve', builtin, '--port', '0', ...cache(), ...flags],
        { encoding: 'utf8', timeout: 240_000 });
      assert.notEqual(status, 0);
      assert.match(stderr, words);
    });
  }
});

describe('PUT /admin/intent', () => {
  const ask = { prompt: 'Once upon a time', max_tokens: 24, temperature: 0, ignore_eos: true };
  let server;
  let admin;
  const json = async (reply) => ({ status: reply.status, ...await reply.json() });
  const text = async () => {
    const answer = await json(await fetch(`${server.url}/v1/completions`, { method: 'POST', body: JSON.stringify(ask) }));
    assert.equal(answer.status, 200, JSON.stringify(answer));
    return answer.choices[0].text;
  };
  const want = async (intent) => json(await fetch(`${admin}/admin/intent`, { method: 'PUT', body: JSON.stringify({ intent }) }));
  const shown = async () => json(await fetch(`${admin}/admin/intent?model=story`));
  const ended = () => until(async () => {
    const { change } = await shown();
    return ['done', 'failed'].includes(change.state) && change;
  }, () => server.log);
  const model = async () => (await json(await fetch(`${admin}/admin/models`))).models[0];
  before(async () => {
    server = await Server.startWith({ path: ['--model', `story=${builtin}`] }, ...cache(), '--admin-port', '0', '--devices', '2',
      '--tensor-parallel-size', '2', '--dtype', 'bf16', '--kv-cache-memory', '8MiB', '--max-num-seqs', '8');
    await server.logged(/operators' port: (\S+)/);
    admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
  });
  after(async () => assert.equal(await server.stop(), 0, server.log));

  it('serves for another intent without a failed or a different answer', async () => {
    const before = await text();
    assert.equal((await shown()).intent, null);
    const plan = async () => json(await fetch(`${admin}/admin/intent/plan?model=story`));
    assert.match((await plan()).error.message, /story is not served for an intent: start it with --intent/);
    const texts = [];
    let busy = true;
    const clients = [0, 1, 2].map(async () => {
      for (; busy;) texts.push(await text());
    });
    await until(() => texts.length > 0);
    const [begun, refused] = (await Promise.all([want('min-memory'), want('min-memory')])).sort((a, b) => a.status - b.status);
    assert.deepEqual([begun.status, begun.model, begun.change.intent, begun.change.state], [202, 'story', 'min-memory', 'planning']);
    assert.equal(refused.status, 409, 'one change at a time');
    const change = await ended();
    assert.equal(change.state, 'done', JSON.stringify(change));
    assert.ok(change.batch >= 1 && change.prompt_tokens >= 2 && change.output_tokens >= 1, 'the load of the model so far');
    assert.match(change.configuration, /^TP 1 x PP 1, w4(a8)?, KV int8$/);
    const after = await text();
    for (let n = texts.length; texts.length < n + 3;) await sleep(20);
    busy = false;
    await Promise.all(clients);
    assert.notEqual(after, before);
    assert.deepEqual([...new Set(texts)].sort(), [before, after].sort(), 'each answer is of one configuration from beginning to end');
    assert.ok(texts.lastIndexOf(before) < texts.length - 1 && texts.at(-1) === after);
    assert.match((await model()).form, /layers w4(a8)?:16/);
    assert.equal((await model()).intent, 'min-memory');
    const { intent, configurations } = await plan();
    assert.equal(intent, 'min-memory');
    const chosen = configurations.find(({ name }) => name === change.configuration);
    assert.ok(configurations.length > 1 && configurations.every(({ memory_bytes }) => memory_bytes >= chosen.memory_bytes));
    assert.match(chosen.rests_on, /fingerprint|measured/);
    const { maps } = await json(await fetch(`${admin}/admin/configurations?model=story&batch=${change.batch}&output_tokens=${change.output_tokens}`));
    const [{ ttft_ms, tpot_ms, memory_bytes }] = maps[0].configurations.filter(({ name }) => name === change.configuration);
    assert.deepEqual([ttft_ms, tpot_ms, memory_bytes], [chosen.ttft_ms, chosen.tpot_ms, chosen.memory_bytes]);
    assert.equal((await json(await fetch(`${admin}/admin/models`))).models.length, 1);
  });

  it('changes nothing if the configuration is the same, or if no configuration keeps the intent', async () => {
    const text0 = await text();
    assert.equal((await want('min-memory')).status, 202);
    assert.equal((await ended()).state, 'done');
    assert.equal((await want('latency-slo=0.001ms')).status, 202);
    const failed = await ended();
    assert.equal(failed.state, 'failed');
    assert.match(failed.error, /no configuration keeps latency-slo=0\.001ms: the nearest, /);
    assert.equal((await shown()).intent, 'min-memory');
    assert.equal(await text(), text0);
  });

  it('profiles a model when asked, while it answers', async () => {
    const profile = async (method) => json(await fetch(`${admin}/admin/profile?model=story`, { method }));
    assert.deepEqual(await profile('GET'), { status: 200, model: 'story', state: null });
    const known = await text();
    assert.deepEqual([(await profile('POST')).status, (await profile('POST')).status], [202, 409]);
    let now;
    let meanwhile = 0;
    for (let i = 0; i < 10; ++i) {
      assert.equal(await text(), known);
      now = await profile('GET');
      meanwhile += /waiting|profiling/.test(now.state) ? 1 : 0;
      await sleep(50);
    }
    assert.ok(meanwhile > 0, 'it answers meanwhile');
    // An instrumented build takes minutes for all steps.
    const enough = () => ['done', 'failed'].includes(now.state) || (instrumented && now.steps >= 3);
    for (let i = 0; i < 6000 && !enough(); ++i) {
      await sleep(50);
      now = await profile('GET');
    }
    assert.ok(enough() && now.state !== 'failed', JSON.stringify(now));
    assert.ok(now.of_steps > 50 && now.fingerprints === 2 && now.discarded >= 0 && now.seconds > 0, JSON.stringify(now));
    if (now.state === 'done') assert.deepEqual([now.fingerprint, now.steps], [2, now.of_steps]);
    assert.equal((await fetch(`${admin}/admin/profile?model=other`, { method: 'POST' })).status, 404);
  });

  it('refuses what is no intent', async () => {
    assert.match((await want('min-latancy')).error.message, /did you mean min-latency\?/);
    assert.match((await want(3)).error.message, /send {"intent": "min-latency"}/);
    assert.equal((await json(await fetch(`${admin}/admin/intent?model=other`))).status, 404);
  });
});

describe('PUT /admin/intent in place', () => {
  const tokens = 200;  // so many that some answer is under way at all times
  const ask = JSON.stringify({ prompt: 'Once upon a time', max_tokens: tokens, temperature: 0, ignore_eos: true });
  let folder;
  let server;
  let admin;
  const model = async () => {
    const { models } = await (await fetch(`${admin}/admin/models`)).json();
    assert.equal(models.length, 1);
    return models[0];
  };
  const answer = async () => {
    const reply = await fetch(`${server.url}/v1/completions`, { method: 'POST', body: ask });
    const { usage, choices } = await reply.json();
    assert.deepEqual([reply.status, usage?.completion_tokens, choices?.[0].finish_reason], [200, tokens, 'length']);
    return Object.keys(usage.output_tokens_by_precision);
  };
  const changed = async (intent) => {
    const body = JSON.stringify({ intent, batch: 1, prompt_tokens: 16, output_tokens: 64 });
    assert.equal((await fetch(`${admin}/admin/intent`, { method: 'PUT', body })).status, 202);
    const change = await until(async () => {
      const { change: now } = await (await fetch(`${admin}/admin/intent`)).json();
      return ['done', 'failed'].includes(now.state) && now;
    }, () => server.log);
    assert.deepEqual([change.state, change.way], ['done', 'in place'], `${JSON.stringify(change)} ${server.log}`);
    return change.configuration;
  };
  const becomes = async (is) => {
    let now;
    return until(async () => is(now = await model()) && now, () => `${JSON.stringify(now)} ${server.log}`);
  };
  const sleeps = async () => {
    await until(async () => (await fetch(`${admin}/admin/sleep?model=story`, { method: 'POST' })).status === 202, () => server.log);
    await becomes(({ residence }) => residence === 'asleep');
  };
  // Wakes the model with a request, whose tokens are of one precision: it is loaded in the form that it has to have.
  const wakesAt = async (form) => {
    const precisions = await answer();
    const now = await becomes(({ residence }) => residence === 'awake');
    assert.match(now.form, form);
    assert.equal(precisions.length, 1, precisions);
    const { morphs } = await (await fetch(`${admin}/admin/morphs`)).json();
    assert.deepEqual(morphs.filter(({ kind }) => kind !== 'kv'), [], 'no weights change after it is loaded');
    return now;
  };
  const start = async (...flags) => {
    server = await Server.startWith({ path: ['--model', `story=${builtin}`] }, '--variant-cache', folder, '--admin-port', '0',
      '--devices', '2', '--intent', 'min-device-hours', '--kv-cache-memory', '8MiB', '--max-num-seqs', '8', ...flags);
    await server.logged(/operators' port: (\S+)/);
    admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
    await until(async () => (await fetch(`${server.url}/health`)).status === 200, () => server.log);
    await server.logged(/intent min-device-hours: 1 of 2 devices, TP 1 x PP 1, bf16, KV int8/);
    const loaded = await model();
    assert.match(loaded.form, /layers bf16:16/);
    return loaded;
  };
  before(() => {
    folder = editedCache(scratch, 'edited', 'if name != "bf16": of.update({field: (of[field] + 1000) * 100 for field in ("step_us", "token_us")})');
  });
  afterEach(async () => assert.equal(await server.stop(), 0, server.log));

  it('changes the weights of the engine that serves, and back, without a second copy, also while the model sleeps', async () => {
    const loaded = await start();
    let mixed = 0;
    let busy = true;
    const clients = [0, 1, 2].map(async () => {
      while (busy) mixed += (await answer()).length > 1 ? 1 : 0;
    });
    const changedAmongAnswers = async (intent) => {
      mixed = 0;
      const configuration = await changed(intent);
      await until(() => mixed > 0);  // answers go on in the engine that changes
      return configuration;
    };
    assert.match(await changedAmongAnswers('min-memory'), /^TP 1 x PP 1, w4(a8)?, KV int8$/);
    const low = await becomes(({ device_bytes: bytes }) => bytes < loaded.device_bytes);  // it gives memory back
    assert.match(low.form, /layers w4(a8)?:16/);
    assert.equal(low.intent, 'min-memory');
    assert.equal(await changedAmongAnswers('min-device-hours'), 'TP 1 x PP 1, bf16, KV int8');
    const high = await becomes(({ form, device_bytes: bytes }) => form === loaded.form && bytes === loaded.device_bytes);
    assert.equal(high.intent, 'min-device-hours');
    busy = false;
    await Promise.all(clients);
    await sleeps();
    await changed('min-memory');
    assert.equal((await model()).residence, 'asleep', 'nothing needs it yet');
    const woken = await wakesAt(/layers w4(a8)?:16/);
    assert.deepEqual([woken.form, woken.device_bytes], [low.form, low.device_bytes]);
    await changed('min-device-hours');
    await becomes(({ form, device_bytes: bytes }) => form === loaded.form && bytes === loaded.device_bytes);
    assert.doesNotMatch(server.log, /is removed/, 'there was one copy at all times');
  });

  it('changes the form to which a policy returns, in which the model wakes', async () => {
    const loaded = await start('--morph', 'balanced');
    await changed('min-memory');
    await becomes(({ form }) => /layers w4(a8)?:16/.test(form));
    assert.equal((await answer()).length, 1);
    await sleeps();
    await wakesAt(/layers w4(a8)?:16/);
    await changed('min-device-hours');
    await becomes(({ form }) => form === loaded.form);
    assert.doesNotMatch(server.log, /is removed/);
  });
});

describe('PUT /admin/intent handed over', () => {
  const tokens = 200;
  const ask = JSON.stringify({ prompt: 'Once upon a time', max_tokens: tokens, temperature: 0, ignore_eos: true });
  let server;
  let admin;
  let answered = 0;
  const model = async () => (await (await fetch(`${admin}/admin/models`)).json()).models[0];
  const answer = async () => {
    const reply = await fetch(`${server.url}/v1/completions`, { method: 'POST', body: ask });
    const { usage, choices } = await reply.json();
    assert.deepEqual([reply.status, usage?.completion_tokens, choices?.[0].finish_reason], [200, tokens, 'length']);
    ++answered;
    return choices[0].text;
  };
  const changed = async (intent) => {
    const body = JSON.stringify({ intent, batch: 1, prompt_tokens: 16, output_tokens: tokens });
    assert.equal((await fetch(`${admin}/admin/intent`, { method: 'PUT', body })).status, 202);
    const seen = new Set();
    const change = await until(async () => {
      const { change: now } = await (await fetch(`${admin}/admin/intent`)).json();
      seen.add(now.state);
      return ['done', 'failed'].includes(now.state) && now;
    }, () => server.log);
    assert.deepEqual([change.state, change.way], ['done', 'handed over'], `${JSON.stringify(change)} ${server.log}`);
    assert.ok(!seen.has('draining'));
    return change.configuration;
  };
  after(async () => assert.equal(await server.stop(), 0, server.log));

  it('gives a model other devices while its answers go on, and the memory of the former ones back', async () => {
    // Steps at bf16 take so long that two devices shorten them.
    const folder = editedCache(scratch, 'handed over', 'of.update({field: (of[field] + 100) * (50 if name == "bf16" else 5000) for field in ("step_us", "token_us")})');
    server = await Server.startWith({ path: ['--model', `story=${builtin}`] }, '--variant-cache', folder, '--admin-port', '0', '--devices', '2',
      '--intent', 'min-device-hours', '--kv-cache-memory', '8MiB', '--max-num-seqs', '8');
    await server.logged(/operators' port: (\S+)/);
    admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
    await until(async () => (await fetch(`${server.url}/health`)).status === 200, () => server.log);
    await server.logged(/intent min-device-hours: 1 of 2 devices, TP 1 x PP 1, bf16, KV int8/);
    const loaded = await model();
    const before = await answer();
    let busy = true;
    const clients = [0, 1, 2].map(async () => {
      while (busy) await answer();
    });
    assert.equal(await changed('min-latency'), 'TP 2 x PP 1, bf16, KV int8');
    const shared = await model();
    assert.deepEqual([shared.intent, shared.residence], ['min-latency', 'awake']);
    assert.notEqual(shared.form, loaded.form);
    assert.equal(await changed('min-device-hours'), 'TP 1 x PP 1, bf16, KV int8');
    const back = await until(async () => {
      const now = await model();
      return now.form === loaded.form && now;
    }, () => server.log);
    assert.deepEqual([back.device_bytes, back.intent], [loaded.device_bytes, 'min-device-hours']);
    busy = false;
    await Promise.all(clients);
    assert.equal(await answer(), before);
    const metrics = await server.idleMetrics();
    assert.equal(metrics.get('vllm:generation_tokens_total'), answered * tokens, 'counters go on');
    assert.equal(metrics.get('vllm:request_success_total'), answered);
    assert.doesNotMatch(server.log, /is removed/, 'there was one host at all times');

    await until(async () => (await fetch(`${admin}/admin/sleep?model=story`, { method: 'POST' })).status === 202, () => server.log);
    await until(async () => (await model()).residence === 'asleep', () => server.log);
    await changed('min-latency');
    assert.deepEqual([(await model()).residence, (await model()).form], ['asleep', shared.form], 'nothing needs it yet');
    await answer();
    assert.equal((await model()).form, shared.form);
  });
});
