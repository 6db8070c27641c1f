// Several models in one server: each answers as if it were alone.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, renameSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { Ollama } from 'ollama';
import OpenAI from 'openai';
import { writeRandomModel } from './random_model.mjs';
import { builtin, instrumented, program, Server, sleep, until } from './server.mjs';

const small = ['--max-num-batched-tokens', '256', '--max-num-seqs', '8', '--max-model-len', '512'];
const fields = { prompt: 'Once upon a time', max_tokens: 60, temperature: 0, ignore_eos: true };

let scratch;
let random;
before(() => {
  scratch = mkdtempSync(join(tmpdir(), 'protean-models-'));
  random = writeRandomModel(join(scratch, 'random'));
});
after(() => rmSync(scratch, { recursive: true, force: true }));

const clientOf = (server) => new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 });

// Calls `came` at each piece.
async function stream(client, model, came = () => {}) {
  let text = '';
  for await (const chunk of await client.completions.create({ ...fields, model, stream: true })) {
    assert.equal(chunk.model, model);
    text += chunk.choices[0]?.text ?? '';
    came();
  }
  return text;
}

async function aloneText(path) {
  const server = await Server.startWith({ path }, '--served-model-name', 'alone', ...small);
  const text = await stream(clientOf(server), 'alone');
  assert.equal(await server.stop(), 0, server.log);
  return text;
}

describe('several models', () => {
  let server;
  let client;
  let admin;
  const alone = {};
  before(async () => {
    alone.story = await aloneText(builtin);
    alone.noise = await aloneText(random);
    server = await Server.startWith({ path: ['--model', `story=${builtin}`, '--model', `noise=${random}`] },
      '--admin-port', '0', '--kv-cache-memory', '16MiB', ...small);
    client = clientOf(server);
    await server.logged(/operators' port: (\S+)/);
    admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
  });
  after(async () => assert.equal(await server.stop(), 0, server.log));

  const json = async (url) => (await fetch(url)).json();

  it('stream at the same time what each streams alone', async () => {
    assert.notEqual(alone.story, alone.noise);
    const names = ['story', 'noise', 'noise', 'story', 'story', 'noise'];
    const texts = await Promise.all(names.map((name) => stream(client, name)));
    assert.deepEqual(texts, names.map((name) => alone[name]));
  });

  it('are listed, and the first one answers calls that name none', async () => {
    assert.deepEqual((await client.models.list()).data.map(({ id }) => id), ['story', 'noise']);
    assert.equal((await client.models.retrieve('noise')).id, 'noise');
    const nameless = await fetch(`${server.url}/v1/completions`, { method: 'POST', body: JSON.stringify(fields) });
    const answer = await nameless.json();
    assert.deepEqual([answer.model, answer.choices[0].text], ['story', alone.story]);
    const ollama = new Ollama({ host: server.url });
    assert.deepEqual((await ollama.list()).models.map(({ name }) => name), ['story:latest', 'noise:latest']);
    assert.deepEqual((await ollama.ps()).models.map(({ name }) => name), ['story:latest', 'noise:latest']);
    const told = await ollama.generate({ model: 'noise:latest', prompt: 'a', raw: true, options: { num_predict: 3 } });
    assert.equal(told.eval_count, 3);
  });

  it('refuse a name that no model has, with the names that there are', async () => {
    const unknown = /the model "third" does not exist here, this server has "story", "noise"/;
    await assert.rejects(client.completions.create({ ...fields, model: 'third' }), (error) => error.status === 404 && unknown.test(error.message));
    await assert.rejects(client.models.retrieve('third'), (error) => error.status === 404 && unknown.test(error.message));
    const broken = await fetch(`${server.url}/v1/completions`, { method: 'POST', body: '{"model": "noise", ' });
    assert.equal(broken.status, 400);
  });

  it('share one exposition of metrics', async () => {
    const text = await (await fetch(`${server.url}/metrics`)).text();
    const types = text.split('\n').filter((line) => line.startsWith('# TYPE ')).map((line) => line.split(' ')[2]);
    assert.deepEqual(types, [...new Set(types)]);
    const metrics = await server.idleMetrics();
    for (const name of ['story', 'noise']) {
      assert.ok(metrics.get(`vllm:generation_tokens_total{engine="0",model_name="${name}"}`) >= 60, name);
    }
    assert.ok(metrics.get('http_requests_total{handler="/v1/completions",method="POST",status="200"}') >= 6);
  });

  it('are steered one by one on the operators\' port', async () => {
    const { models } = await json(`${admin}/admin/models`);
    assert.deepEqual(models.map(({ model, replicas }) => [model, replicas]), [['story', 1], ['noise', 1]]);
    assert.match(models[0].form, /layers bf16:16/);
    const wish = await fetch(`${admin}/admin/form?model=noise`, { method: 'PUT', body: JSON.stringify({ layers: 'w8' }) });
    assert.equal(wish.status, 202, await wish.text());
    const form = (name) => json(`${admin}/admin/form?model=${name}`);
    await until(async () => (await form('noise')).form.layer_precision.join() === 'w8,w8', () => server.log);
    assert.ok((await form('story')).form.layer_precision.every((at) => at === 'bf16'));
    assert.equal((await json(`${admin}/admin/form`)).model, 'story');
    assert.equal((await json(`${admin}/admin/fleet?model=noise`)).replicas.length, 1);
    assert.equal((await fetch(`${admin}/admin/recording?model=noise&minutes=5`)).status, 200);
    const abort = new AbortController();
    const { body: events } = await fetch(`${admin}/admin/events?model=noise`, { signal: abort.signal });
    assert.match(Buffer.from((await events.getReader().read()).value).toString(), /^event: hello\ndata: /);
    abort.abort();
    const unknown = await fetch(`${admin}/admin/form?model=third`);
    assert.equal(unknown.status, 404);
    assert.match((await unknown.json()).error.message, /this server has "story", "noise"/);
    assert.equal(await stream(client, 'story'), alone.story);
  });
});

describe('models on the same CPUs', () => {
  it('trade KV memory, also with one that is deployed later, and answer as if it were their own', async () => {
    const path = join(scratch, 'trading.toml');
    writeFileSync(path, `[busy]\nmodel = "${builtin}"\nkv-cache-memory = "4MiB"\n`);
    const server = await Server.startWith({ path: ['--models', path] }, '--admin-port', '0', '--morph', 'balanced', '--morph-precisions', '',
      '--variant-cache', join(scratch, 'variants'), ...small);
    try {
      await server.logged(/operators' port: (\S+)/);
      const url = `http://${server.log.match(/operators' port: (\S+)/)[1]}/admin/models`;
      const memory = async () => (await (await fetch(url)).json()).models;
      const later = await fetch(url, { method: 'POST', body: JSON.stringify({ name: 'idle', model: builtin, 'kv-cache-memory': '32MiB' }) });
      assert.equal(later.status, 202, await later.text());
      await until(async () => (await memory())[1]?.residence === 'awake', () => server.log);
      const prompts = ['A cat', 'The old man', 'One day', 'In a forest', 'Her name', 'They', 'Two birds', 'When rain'];
      const texts = (model) => Promise.all(prompts.map(async (prompt) =>
        (await clientOf(server).completions.create({ ...fields, prompt, max_tokens: 120, model })).choices[0].text));
      const first = await texts('busy');
      let lent = false;
      const load = (async () => {
        while (!lent) assert.deepEqual(await texts('busy'), first);
      })();
      load.catch(() => {});  // it fails where it is awaited
      const models = await until(async () => {
        const now = await memory();
        return now[0].device_bytes - now[0].own_bytes > 2 ** 20 && now;
      }, async () => JSON.stringify(await memory())).finally(() => { lent = true; });
      const sum = (field) => models.reduce((bytes, model) => bytes + model[field], 0);
      assert.ok(sum('device_bytes') <= sum('own_bytes'), JSON.stringify(models));
      await load;
      assert.deepEqual(first, await texts('idle'), 'the lender has the same weights, and needs its memory now');
    } finally {
      assert.equal(await server.stop(), 0, server.log);
    }
  });
});

describe('models that are not used', () => {
  it('sleep, give their memory back, and wake for the next request', async () => {
    const server = await Server.startWith({ path: ['--model', `story=${builtin}`, '--model', `noise=${random}`] },
      '--admin-port', '0', '--kv-cache-memory', '128MiB', '--sleep-idle-seconds', '1', ...small);
    try {
      const client = clientOf(server);
      await server.logged(/operators' port: (\S+)/);
      const admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
      const residence = async (name) => (await (await fetch(`${admin}/admin/models`)).json()).models.find(({ model }) => model === name).residence;
      const becomes = (name, state) => until(async () => await residence(name) === state, () => `${name} is not ${state}\n${server.log}`);
      // Told by the log, since a model that is not used is soon asleep again.
      const wakes = (name) => [...server.log.matchAll(new RegExp(`${name} woke in`, 'g'))].length;
      const post = async (what, name) => (await fetch(`${admin}/admin/${what}?model=${name}`, { method: 'POST' })).status;
      let awake = 0;
      const text = await stream(client, 'story', () => { awake = Math.max(awake, server.residentBytes()); });
      await becomes('story', 'asleep');
      await becomes('noise', 'asleep');
      await until(() => server.residentBytes() < awake - 20 * 2 ** 20, () => `${awake} to ${server.residentBytes()} bytes`);
      const counted = (await server.metrics()).get('vllm:generation_tokens_total{engine="0",model_name="story"}');
      assert.equal((await server.metrics()).get('vllm:engine_sleep_state{engine="0",model_name="story",sleep_state="awake"}'), 0);
      // A slow machine may have let the model sleep before its first request too.
      const earlier = wakes('story');
      assert.deepEqual(await Promise.all(Array.from({ length: 8 }, () => stream(client, 'story'))), Array(8).fill(text));
      await until(() => wakes('story') > earlier);
      assert.equal(wakes('story'), earlier + 1);
      assert.equal((await server.metrics()).get('vllm:generation_tokens_total{engine="0",model_name="story"}'), counted + 8 * fields.max_tokens);
      const earlierOfNoise = wakes('noise');
      assert.equal(await post('wake', 'noise'), 202);
      await until(async () => wakes('noise') > earlierOfNoise && await residence('noise') !== 'waking', () => server.log);
      assert.equal(await post('sleep', 'noise'), 202);
      await becomes('noise', 'asleep');
      const wish = await fetch(`${admin}/admin/form?model=noise`, { method: 'PUT', body: JSON.stringify({ layers: 'w8' }) });
      assert.equal(wish.status, 202, 'a wish wakes the model too');
      const form = async () => (await fetch(`${admin}/admin/form?model=noise`)).json();
      const lowered = async () => { const { form: now, pinned } = await form(); return pinned && now.layer_precision.every((at) => at === 'w8'); };
      await until(lowered, () => server.log);
      await becomes('noise', 'asleep');
      const atW8 = async () => [...await server.metrics()].filter(([name]) => name.startsWith('protean:generation_tokens_by_precision_total{') && name.includes('"noise"') && name.includes('w8'))
        .reduce((sum, [, value]) => sum + value, 0);
      const counted8 = await atW8();
      await until(async () => {  // what an operator asked for outlives the sleep
        await stream(client, 'noise');
        return await atW8() > counted8;
      }, () => server.log);

      const ollama = new Ollama({ host: server.url });
      const told = (keep_alive) => ollama.generate({ model: 'story', prompt: 'a', raw: true, keep_alive, options: { num_predict: 3 } });
      const expires = async () => (await ollama.ps()).models.find(({ name }) => name === 'story:latest')?.expires_at;
      await told(-1);
      assert.match(await expires(), /^9999/);
      await sleep(1500);
      assert.equal(await residence('story'), 'awake', 'in place of --sleep-idle-seconds');
      await told('1h');
      assert.ok(Date.parse(await expires()) > Date.now() + 3_000_000, await expires());
      const [one] = await Promise.all([stream(client, 'story'), told(0)]);
      assert.equal(one, text, 'requests end before it sleeps');
      await becomes('story', 'asleep');
      await told('-1m');
      assert.equal((await ollama.generate({ model: 'story', keep_alive: 0 })).done_reason, 'unload');
      await becomes('story', 'asleep');
      const bad = await fetch(`${server.url}/api/generate`, { method: 'POST', body: JSON.stringify({ model: 'story', prompt: 'a', keep_alive: '5' }) });
      assert.match((await bad.json()).error, /keep_alive must be a number of seconds, or a time with units/);
    } finally {
      assert.equal(await server.stop(), 0, server.log);
    }
  });

  it('open their files again if these were written or replaced meanwhile, once they can be', async () => {
    const copy = join(scratch, 'written');
    const weights = join(copy, 'model.safetensors');
    cpSync(random, copy, { recursive: true });
    const server = await Server.startWith({ path: copy }, '--served-model-name', 'noise', '--admin-port', '0', ...small);
    try {
      await server.logged(/operators' port: (\S+)/);
      const admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
      const client = clientOf(server);
      const expected = await stream(client, 'noise');
      const sleeps = async () => {
        assert.equal((await fetch(`${admin}/admin/sleep`, { method: 'POST' })).status, 202);
        await until(async () => (await (await fetch(`${admin}/admin/models`)).json()).models[0].residence === 'asleep', () => server.log);
      };
      await sleeps();
      truncateSync(weights, 1000);
      await assert.rejects(stream(client, 'noise'), ({ status, message }) => status === 503 && /were written or replaced after they were opened, and cannot be opened again: /.test(message));
      cpSync(join(random, 'model.safetensors'), weights);
      assert.equal(await stream(client, 'noise'), expected);

      // A directory, and then a file, takes the place of another one, which stays readable to those that have opened it.
      await sleeps();
      renameSync(copy, `${copy} before`);
      writeRandomModel(copy, 2, (name, i) => name === 'lm_head.weight' ? (i * 7919) % 1000 / 1000 : undefined);
      assert.notEqual(await stream(client, 'noise'), expected);
      await sleeps();
      renameSync(join(`${copy} before`, 'model.safetensors'), weights);
      assert.equal(await stream(client, 'noise'), expected);
      await sleeps();
      renameSync(join(`${copy} before`, 'generation_config.json'), join(copy, 'other'));
      writeFileSync(join(copy, 'generation_config.json'), '{"eos_token_id": 7}');
      await assert.rejects(stream(client, 'noise'), ({ status, message }) => status === 503 && /has other defaults for generation now/.test(message));
      renameSync(join(copy, 'other'), join(copy, 'generation_config.json'));
      assert.equal(await stream(client, 'noise'), expected);
    } finally {
      assert.equal(await server.stop(), 0, server.log);
    }
  });
});

describe('models that come and go', () => {
  it('are deployed and removed while others answer', async () => {
    const server = await Server.startWith({ path: ['--model', `story=${builtin}`] }, '--admin-port', '0', '--kv-cache-memory', '16MiB', ...small);
    try {
      const client = clientOf(server);
      await server.logged(/operators' port: (\S+)/);
      const url = `http://${server.log.match(/operators' port: (\S+)/)[1]}/admin/models`;
      const deploy = async (body) => {
        const reply = await fetch(url, { method: 'POST', body: JSON.stringify(body) });
        return { status: reply.status, ...await reply.json() };
      };
      const remove = async (name) => {
        const reply = await fetch(`${url}?model=${name}`, { method: 'DELETE' });
        return { status: reply.status, ...await reply.json() };
      };
      const find = async (name) => (await json(url)).models.find(({ model }) => model === name);
      const becomes = (name, residence) =>
        until(async () => (await find(name))?.residence === residence, () => `${name} is not ${residence}\n${server.log}`);
      const json = async (address) => (await fetch(address)).json();

      // Once without requests, so that its steps are known.
      await deploy({ name: 'noise', model: random, 'served-model-name': ['hiss'], dtype: 'w8', max_model_len: 256 });
      await becomes('noise', 'awake');
      await remove('noise');
      await becomes('noise', undefined);
      const expected = await stream(client, 'story');
      let busy = true;
      const load = (async () => {
        for (; busy;) assert.equal(await stream(client, 'story'), expected);
      })();
      const resident = [];
      let noise;
      for (let round = 0; round < (instrumented ? 2 : 6); ++round) {
        const begun = await deploy({ name: 'noise', model: random, 'served-model-name': ['hiss'], dtype: 'w8', max_model_len: 256 });
        assert.deepEqual([begun.status, begun.model, begun.residence], [202, 'noise', 'deploying']);
        assert.equal((await deploy({ name: 'noise', model: random })).status, 409);
        await becomes('noise', 'awake');
        assert.match((await find('noise')).form, /layers w8:2/);
        const text = await stream(client, 'hiss');
        assert.equal(noise ??= text, text);
        assert.deepEqual((await client.models.list()).data.map(({ id }) => id), ['story', 'noise', 'hiss']);
        let last;
        await new Promise((begun, failed) => { (last = stream(client, 'noise', begun)).catch(failed); });
        assert.equal((await remove('noise')).status, 202);
        await assert.rejects(client.completions.create({ ...fields, model: 'noise' }), ({ status }) => status === 404);
        assert.equal(await last, noise, 'its requests end first');
        await becomes('noise', undefined);
        resident.push(server.residentBytes());
      }
      busy = false;
      await load;
      await until(() => instrumented || server.residentBytes() < resident[1] + 24 * 2 ** 20, () => `grew: ${resident}`);

      const registered = await deploy({ name: 'later', model: random, dtype: 'w8', max_model_len: 256, load: false });
      assert.equal(registered.status, 202);
      await becomes('later', 'asleep');
      assert.equal((await find('later')).wake_seconds, null, 'it was never loaded');
      assert.equal(await stream(client, 'later'), noise, 'a request wakes it');
      assert.ok((await find('later')).wake_seconds > 0);
      assert.ok((await find('story')).wake_seconds > 0);
      await remove('later');
      await becomes('later', undefined);

      assert.equal((await remove('story')).status, 409, 'it is the only one');
      assert.equal((await remove('third')).status, 404);
      assert.match((await deploy({ name: 'a', model: random, dtyp: 'w8' })).error.message, /'dtyp' is no flag of a model: did you mean dtype\?/);
      assert.match((await deploy({ name: 'a', model: random, morph: 'fast' })).error.message, /--morph: 'fast' is none of/);
      assert.match((await deploy({ morph: true, name: 'a', model: random })).error.message, /'morph' takes a value/);
      assert.match((await deploy({ name: 'a' })).error.message, /"model" is missing/);
      assert.match((await deploy({ model: random })).error.message, /send {"name"/);
      assert.equal((await deploy({ name: 'a', model: '/nowhere/a' })).status, 202);
      await becomes('a', 'failed');
      assert.match((await find('a')).error, /\/nowhere\/a/);
      const odd = join(scratch, 'odd');
      cpSync(random, odd, { recursive: true });
      rmSync(join(odd, 'tokenizer.json'));
      assert.equal(spawnSync('mkfifo', [join(odd, 'tokenizer.json')]).status, 0);
      for (const model of [odd, join(odd, 'tokenizer.json')]) {
        assert.equal((await deploy({ name: 'a', model })).status, 202);
        await until(async () => /tokenizer\.json is (not a regular file|one file of a model)/.test((await find('a'))?.error), () => server.log);
      }
      assert.equal((await deploy({ name: 'b', model: 'org/never-pulled' })).status, 202);
      await becomes('b', 'failed');
      assert.match((await find('b')).error, /run protean pull org\/never-pulled/);
      assert.equal((await deploy({ name: 'a', model: random, 'device-memory': '1KiB' })).status, 202, 'a name may be tried again');
      await becomes('a', 'failed');
      assert.equal(await stream(client, 'story'), expected);
    } finally {
      assert.equal(await server.stop(), 0, server.log);
    }
  });
});

describe('work in the background', () => {
  it('is taken back by an operator, and is refused if it makes no sense or the files are of another model', async () => {
    const folder = join(scratch, 'story');
    cpSync(builtin, folder, { recursive: true });
    const server = await Server.startWith({ path: ['--model', `story=${folder}`] }, '--admin-port', '0', '--kv-cache-memory', '16MiB',
      '--variant-cache', join(scratch, 'never timed'), ...small);
    try {
      await server.logged(/operators' port: (\S+)/);
      await until(async () => (await fetch(`${server.url}/health`)).status === 200, () => server.log);
      const admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}/admin`;
      const call = async (method, path, body) => {
        const reply = await fetch(`${admin}/${path}`, { method, body: body && JSON.stringify(body) });
        return { status: reply.status, ...await reply.json() };
      };
      const found = async (name) => (await call('GET', 'models')).models.find(({ model }) => model === name);
      const gone = (name) => until(async () => await found(name) === undefined, () => server.log);

      assert.equal((await call('DELETE', 'profile')).status, 409);
      assert.equal((await call('DELETE', 'intent')).status, 409);
      assert.equal((await call('POST', 'profile')).status, 202);
      assert.equal((await call('POST', 'models', { name: 'queued', model: random })).status, 202);
      assert.equal((await call('PUT', 'intent', { intent: 'min-cost' })).status, 202);
      const { status, residence } = await call('DELETE', 'models?model=queued');
      assert.deepEqual([status, residence], [202, 'leaving']);
      await gone('queued');
      assert.equal((await call('DELETE', 'intent')).status, 202);
      await until(async () => (await call('GET', 'intent')).change.state === 'cancelled', () => server.log);
      assert.match((await call('GET', 'profile')).state, /waiting|profiling/, 'it goes on');
      assert.equal((await call('DELETE', 'profile')).status, 202);
      await until(async () => (await call('GET', 'profile')).state === 'cancelled', () => server.log);
      await call('POST', 'models', { name: 'begun', model: random });
      let begun;
      await until(async () => (begun = await found('begun'))?.progress?.of_steps > 0 || begun?.residence !== 'deploying', () => server.log);
      assert.ok(begun.progress.steps > 0, JSON.stringify(begun));
      assert.equal((await call('DELETE', 'models?model=begun')).status, 202);
      await gone('begun');

      await call('POST', 'models', { name: 'many', model: random, threads: 4096 });
      const many = await until(async () => (await found('many'))?.residence === 'failed' && found('many'), () => server.log);
      assert.match(many.error, /threads 4096: this process may use \d+ CPUs?: use at most \d+ threads/);

      rmSync(folder, { recursive: true });
      cpSync(random, folder, { recursive: true });
      const another = /story is another model now: remove story and deploy it again, or put its files back/;
      const failed = async () => {
        await call('PUT', 'intent', { intent: 'min-memory' });
        return until(async () => {
          const { change } = await call('GET', 'intent');
          return change.state === 'failed' && change.error;
        }, () => server.log);
      };
      assert.match(await failed(), another);
      await call('POST', 'profile');
      assert.match((await until(async () => {
        const profile = await call('GET', 'profile');
        return profile.state === 'failed' && profile;
      }, () => server.log)).error, another);

      rmSync(folder, { recursive: true });
      cpSync(builtin, folder, { recursive: true });
      const weights = readFileSync(join(folder, 'model.safetensors'));
      writeFileSync(join(folder, 'model.safetensors'), weights.fill(0xff, 8 + Number(weights.readBigUInt64LE(0))));
      assert.match(await failed(), /^its steps cannot be timed: .*weight/);
      assert.equal((await stream(clientOf(server), 'story')).length > 0, true);
    } finally {
      assert.equal(await server.stop(), 0, server.log);
    }
  });
});

describe('a file of models', () => {
  const file = (text) => {
    const path = join(scratch, 'models.toml');
    writeFileSync(path, text);
    return path;
  };

  it('gives each model flags of its own, in its order', async () => {
    const path = file(`[zebra]\nmodel = "${random}"\ndtype = "w8"\npriority = 3\nmax_model_len = 128\nserved-model-name = ["stripes"]\n\n["org/story"]\nmodel = "${builtin}"\n`);
    const server = await Server.startWith({ path: ['--models', path] }, '--admin-port', '0', '--device-memory', '128MiB', ...small);
    try {
      const { data } = await clientOf(server).models.list();
      assert.deepEqual(data.map(({ id, max_model_len: length }) => [id, length]), [['zebra', 128], ['stripes', 128], ['org/story', 512]]);
      assert.equal(await stream(clientOf(server), 'org/story'), await aloneText(builtin));
      await server.logged(/operators' port: (\S+)/);
      const { models } = await (await fetch(`http://${server.log.match(/operators' port: (\S+)/)[1]}/admin/models`)).json();
      assert.match(models[0].form, /layers w8:2/);
      assert.match(models[1].form, /layers bf16:16/);
      assert.deepEqual(models[0].names, ['zebra', 'stripes']);
      assert.deepEqual(models.map(({ priority }) => priority), [3, 1]);
      assert.ok(models[1].step_seconds > 0);
    } finally {
      assert.equal(await server.stop(), 0, server.log);
    }
  });

  it('is warned of by the name of the model', async () => {
    const path = file(`[zebra]\nmodel = "${random}"\n\n["org/story"]\nmodel = "${builtin}"\nmax-model-len = "auto"\nkv-cache-memory = "3MiB"\n`);
    const server = await Server.startWith({ path: ['--models', path] }, ...small);
    try {
      await server.logged(/warning org\/story: KV memory holds \d+ tokens: --max-model-len is lowered/);
    } finally {
      assert.equal(await server.stop(), 0, server.log);
    }
  });

  it('is refused in a line that says where it is wrong', () => {
    const refused = (args, words) => {
      const { status, stderr } = spawnSync(program, ['serve', ...args, '--port', '0'], { encoding: 'utf8', timeout: 240_000 });
      assert.equal(status, 2, stderr);
      assert.match(stderr, /^protean: [^\n]+\n$/);
      assert.match(stderr, words);
    };
    const broken = (text, words) => refused(['--models', file(text)], words);
    broken(`[a]\nmodel = "x"\ndtyp = "w8"\n`, /--models \S+: line 3: 'dtyp' is no flag of a model: did you mean dtype\?/);
    broken(`[a]\nmodel = "x"\nport = 80\n`, /line 3: 'port' is no flag of a model/);
    broken(`[a]\nmodel = "x"\nmorph = "fast"\n`, /\[a\]: --morph: 'fast' is none of off, accuracy, balanced, performance/);
    broken(`[a]\ndtype = "w8"\n`, /\[a\] needs model = "MODEL"/);
    broken(`dtype = "w8"\n`, /line 1: 'dtype' must be in a table that names a model/);
    broken('', /there is no table/);
    broken('[a\n', /line [12]: /);
    refused(['--model', `a=${builtin}`, '--model', `a=${random}`], /two models are named "a"/);
    refused(['--model', `a=${builtin}`, builtin], /protean serve takes MODEL or --model and --models, not both/);
    refused(['--model', `a=${builtin}`, '--served-model-name', 'b'], /--served-model-name b: several models/);
    const two = ['--model', `a=${builtin}`, '--model', `b=${random}`, '--intent', 'min-cost'];
    refused([...two, '--intent', 'c=min-memory'], /--intent c=min-memory: no model is named "c": the models are "a", "b"/);
    refused([...two, '--intent', 'b=min-latancy'], /--intent b=min-latancy: intent min-latancy is unknown, did you mean min-latency\?/);
    refused([...two, '--intent', 'min-memory'], /--intent min-cost and --intent min-memory are both for all models/);
  });

  it('names every model that cannot be served, and what would fit', () => {
    const run = (...args) => spawnSync(program, ['serve', ...args, '--port', '0'], { encoding: 'utf8', timeout: 240_000 });
    const missing = run('--model', 'a=/nowhere/a', '--model', `b=${builtin}`, '--model', 'c=/nowhere/c');
    assert.match(missing.stderr, /^protean: 2 of 3 models cannot be served: a: [^\n]*\/nowhere\/a[^\n]*; c: [^\n]*\/nowhere\/c[^\n]*\n$/);
    const full = run('--model', `a=${builtin}`, '--model', `b=${builtin}`, '--device-memory', '1MiB');
    assert.match(full.stderr, /2 of 2 models cannot be served: a: [^;]*do not fit[^;]*use --device-memory \d+MiB[^;]*; b: /);
  });
});
