// Models that move by themselves: --move-models auto, and a device that fails.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { editedCache, layerCosts } from './edited_costs.mjs';
import { hangBusiestThread, loseMemory } from './faults.mjs';
import { builtin, instrumented, model as tiny, Server, skip, sleep, until } from './server.mjs';

let scratch;
before(() => { scratch = mkdtempSync(join(tmpdir(), 'protean-moves-')); });
after(() => rmSync(scratch, { recursive: true, force: true }));
const cache = () => ['--variant-cache', join(scratch, 'cache')];

// The CPUs that this process may use, such as [0, 1, 4].
const cpus = readFileSync('/proc/self/status', 'utf8').match(/^Cpus_allowed_list:\s*(\S+)/m)[1].split(',').flatMap((run) => {
  const [first, last = first] = run.split('-').map(Number);
  return Array.from({ length: last - first + 1 }, (_, place) => first + place);
});

const noMoves = skip || (cpus.length < 2 && 'needs two CPUs');
describe('--move-models auto', { skip: noMoves }, () => {
  // With sanitizers, estimates for another model take half a minute.
  const other = instrumented ? builtin : tiny;
  it('gives a model another device when both are busy on one, without a failed or a different answer', async () => {
    const server = await Server.startWith({ path: ['--model', `story=${builtin}`, '--model', `tiny=${other}`] }, ...cache(),
      '--admin-port', '0', '--devices', '2', '--cpus', cpus.slice(0, 2).join(), '--intent', 'min-device-hours', '--move-models', 'auto', '--move-window', '10',
      '--kv-cache-memory', '8MiB', '--max-num-seqs', '4');
    try {
      await server.logged(/operators' port: (\S+)/);
      const admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
      await until(async () => (await fetch(`${server.url}/health`)).status === 200, () => server.log);
      const bound = () => [...server.log.matchAll(/device 0: 1 thread on CPU (\d+), pinned/g)].map(([, cpu]) => cpu);
      await until(() => bound().length >= 2, () => server.log);
      assert.equal(bound().length, 2, server.log);
      assert.equal(bound()[0], bound()[1], 'a device of two is enough while the load is low');
      const text = async (model) => {
        const answer = await fetch(`${server.url}/v1/completions`, { method: 'POST',
          body: JSON.stringify({ model, prompt: 'Once upon a time', max_tokens: 24, temperature: 0, ignore_eos: true }) });
        const { choices, error } = await answer.json();
        assert.equal(answer.status, 200, error?.message);
        return choices[0].text;
      };
      const names = ['story', 'tiny'];
      const before = await Promise.all(names.map(text));
      const texts = [new Set(), new Set()];
      let busy = true;
      const clients = [0, 1, 0, 1].map(async (model) => {
        for (; busy;) texts[model].add(await text(names[model]));
      });
      let moved;
      for (const end = Date.now() + 300_000; Date.now() < end && moved?.change.state !== 'done'; await sleep(50)) {
        const { models } = await (await fetch(`${admin}/admin/models`)).json();
        const name = models.find(({ moves }) => moves > 0)?.model;
        moved = name && await (await fetch(`${admin}/admin/intent?model=${name}`)).json();
      }
      busy = false;
      await Promise.all(clients);
      assert.ok(moved, server.log);
      const { change, intent, model } = moved;
      assert.equal(change.state, 'done', JSON.stringify(moved));
      // Which division a model begins with depends on what the machine was measured to do.
      assert.match(change.why, /^from device [01, ]+ to [01, ]+, .*other models make its answers [\d.]+ times slower now and [\d.]+ times there/);
      assert.ok(change.saves_s > change.costs_s && change.costs_s > 0, JSON.stringify(change));
      assert.deepEqual([change.devices.length, intent, moved.moves], [1, 'min-device-hours', 1]);
      await until(() => bound().length > 2, () => server.log);
      assert.equal(new Set(bound()).size, change.devices[0] === 1 ? 2 : 1, 'its threads are on the CPU of the device that it moves to');
      assert.equal((await server.metrics()).get(`protean:model_moves_total{engine="0",model_name="${model}"}`), 1);
      for (const [place, name] of names.entries()) {
        const known = [before[place], await text(name)];
        // An answer that a configuration with other weights takes over has tokens of both.
        assert.ok([...texts[place]].every((one) => known.includes(one)) || (name === model && known[0] !== known[1]), `${name}: no answer differs`);
      }
    } finally {
      assert.equal(await server.stop(), 0, server.log);
    }
  });
});

describe('--move-models auto in place', { skip: noMoves || (instrumented && 'PUT /admin/intent in place takes the same way') }, () => {
  it('gives a model other weights in its own memory when it has more requests at once than it was planned for', async () => {
    // Steps are shortest at bf16, and tokens cost least at w4.
    const folder = editedCache(scratch, 'moves',
      `of.update(${layerCosts(1e4, 1e4)} if name == "bf16" else ${layerCosts(5e4, 1e2)} if name in ("w4", "w4a8") else ${layerCosts(1e6, 1e6)})`);
    const server = await Server.startWith({ path: ['--model', `story=${builtin}`] }, '--variant-cache', folder, '--admin-port', '0', '--devices', '2',
      '--intent', 'min-device-hours', '--batch', '1', '--prompt-tokens', '4', '--output-tokens', '64',
      '--move-models', 'auto', '--move-window', '3', '--kv-cache-memory', '8MiB', '--max-num-seqs', '8');
    try {
      await server.logged(/operators' port: (\S+)/);
      const admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
      await until(async () => (await fetch(`${server.url}/health`)).status === 200, () => server.log);
      await server.logged(/intent min-device-hours: 1 of 2 devices, TP 1 x PP 1, bf16, KV int8/);
      let busy = true;
      const clients = Array.from({ length: 8 }, async () => {
        while (busy) {
          const reply = await fetch(`${server.url}/v1/completions`, { method: 'POST', body: JSON.stringify({ prompt: 'Once upon a time', max_tokens: 64, ignore_eos: true }) });
          const { usage } = await reply.json();
          assert.deepEqual([reply.status, usage?.completion_tokens], [200, 64]);
        }
      });
      const moved = await until(async () => {
        const now = await (await fetch(`${admin}/admin/intent`)).json();
        return now.moves > 0 && now;
      }, () => server.log);
      busy = false;
      await Promise.all(clients);
      const { change, intent } = moved;
      assert.deepEqual([change.state, change.way, intent, moved.moves], ['done', 'in place', 'min-device-hours', 1], JSON.stringify(moved));
      assert.match(change.configuration, /^TP 1 x PP 1, w4(a8)?, KV int8$/);
      assert.match(change.why, /from TP 1 x PP 1, bf16, KV int8 to TP 1 x PP 1, w4.* there and back in place$/);
      assert.match((await (await fetch(`${admin}/admin/models`)).json()).models[0].form, /layers w4(a8)?:16/);
      assert.doesNotMatch(server.log, /is removed/, 'there was one copy at all times');
    } finally {
      assert.equal(await server.stop(), 0, server.log);
    }
  });
});

// Streams an answer. Returns its text, its end, and the tokens of prompt and answer; or the error that it ends with.
async function stream(server, body, { onBegin = () => {}, signal } = {}) {
  const reply = await fetch(`${server.url}/v1/completions`, { method: 'POST', body: JSON.stringify(body), signal });
  if (reply.status !== 200) return { error: (await reply.json()).error.message };
  const answer = { text: '' };
  let begun = false;
  let rest = '';
  for await (const bytes of reply.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + bytes).split('\n');
    rest = lines.pop();
    for (const line of lines.filter((one) => one.startsWith('data: {'))) {
      const { choices, usage, error } = JSON.parse(line.slice('data: '.length));
      if (error) answer.error = error.message;
      if (usage) answer.tokens = [usage.prompt_tokens, usage.completion_tokens];
      if (choices?.length > 0) {
        if (!begun) onBegin();
        begun = true;
        answer.text += choices[0].text;
        answer.end = choices[0].finish_reason ?? answer.end;
      }
    }
  }
  return answer;
}

// With sanitizers, each plan takes half a minute.
describe('a device that fails', { skip: instrumented }, () => {
  it('takes no further models, and gives one with an intent to a device that is left, with its requests', async () => {
    const server = await Server.startWith({ path: ['--model', `story=${builtin}`] }, ...cache(), '--admin-port', '0', '--devices', '2',
      '--intent', 'min-device-hours', '--kv-cache-memory', '8MiB', '--max-num-seqs', '8');
    try {
      await server.logged(/operators' port: (\S+)/);
      const admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
      await until(async () => (await fetch(`${server.url}/health`)).status === 200, () => server.log);
      const ask = async () => {
        const answer = await fetch(`${server.url}/v1/completions`, { method: 'POST',
          body: JSON.stringify({ prompt: 'Once upon a time', max_tokens: 24, temperature: 0, ignore_eos: true }) });
        const { choices, error } = await answer.json();
        return { status: answer.status, text: choices?.[0].text, reason: error?.message };
      };
      const change = async () => (await (await fetch(`${admin}/admin/intent`)).json()).change;
      const load = async () => (await (await fetch(`${server.url}/load`)).json()).server_load;
      const { text } = await ask();
      // More than run at once, so that some wait: greedy ones, seeded ones, and one with a grammar.
      const schema = { type: 'object', properties: { name: { type: 'string', maxLength: 200 } }, required: ['name'] };
      const asked = Array.from({ length: 12 }, (_, i) => ({ prompt: `Story ${i}. Once upon a time`, max_tokens: 400, stream: true, stream_options: { include_usage: true },
        ...(i === 0 ? { temperature: 0, response_format: { type: 'json_schema', json_schema: { name: 'it', schema } } }
          : { ignore_eos: true, ...(i % 3 === 0 ? { temperature: 1, seed: i, presence_penalty: 0.5 } : { temperature: 0 }) }) }));
      const known = await Promise.all(asked.map((body) => stream(server, body)));
      for (const { error, end, tokens } of known) assert.deepEqual([error, typeof end, tokens?.length], [undefined, 'string', 2]);
      // Fails the device on which the streams run once all that have a place have begun. Returns the change and the answers.
      const lose = async (device) => {
        let begun = 0;
        let ended = 0;
        const answers = asked.map((body) => stream(server, body, { onBegin: () => { ++begun; } }).finally(() => { ++ended; }));
        const left = new AbortController();
        const leaver = stream(server, asked[1], { signal: left.signal }).catch((error) => error.name);
        await until(() => begun >= 6, () => server.log);
        loseMemory(server.process.pid);
        const endedBefore = ended;
        const whole = ask();
        left.abort();
        assert.equal(await leaver, 'AbortError');
        const now = await until(async () => {
          const latest = await change();
          return latest?.way_why?.startsWith(`device ${device} `) && ['done', 'failed'].includes(latest.state) && latest;
        }, () => server.log);
        assert.ok(endedBefore < asked.length, 'some run when the device fails');
        return { now, answers: await Promise.all(answers), whole: await whole };
      };
      const { now: moved, answers, whole } = await lose(0);
      assert.deepEqual([moved.state, moved.way, moved.way_why], ['done', 'placed anew', 'device 0 has lost memory: an access to its pages failed'], JSON.stringify(moved));
      await server.logged(/story: device 0 has lost memory: an access to its pages failed, and takes no further models: this one is placed anew/);
      assert.deepEqual(answers, known, 'the same text and tokens as without the failure');
      assert.deepEqual(whole, { status: 200, text, reason: undefined }, 'what comes meanwhile waits');
      assert.deepEqual(await ask(), { status: 200, text, reason: undefined });
      await until(async () => await load() === 0, () => server.log);
      const { models } = await (await fetch(`${admin}/admin/models`)).json();
      assert.deepEqual(models.map(({ residence }) => residence), ['awake']);

      const { now: failed, answers: cut } = await lose(1);
      assert.deepEqual([failed.state, failed.way], ['failed', 'placed anew']);
      assert.match(failed.error, /all devices \(2\) have failed: start the server again/);
      const reasons = cut.flatMap(({ error }) => error ?? []);
      assert.ok(reasons.length > 0, 'some ran');
      for (const reason of reasons) assert.match(reason, /device 1 has lost memory|all devices \(2\) have failed/);
      const { status, reason } = await ask();
      assert.equal(status, 503);
      assert.match(reason, /device 1 has lost memory/);
      await until(async () => await load() === 0, () => server.log);
    } finally {
      assert.equal(await server.stop(), 0, server.log);
    }
  });

  it('is left at once if it fails while requests are handed over to devices of which it is one', async (t) => {
    // Steps at bf16 take so long that two devices shorten them.
    const folder = editedCache(scratch, 'left', `of.update(${layerCosts(5e4, 3e3)} if name == "bf16" else ${layerCosts(5e6, 3e5)})`);
    const server = await Server.startWith({ path: ['--model', `story=${builtin}`] }, '--variant-cache', folder, '--admin-port', '0', '--devices', '2',
      '--intent', 'min-device-hours', '--kv-cache-memory', '8MiB', '--max-num-seqs', '8', '--device-timeout', '30');
    let hung;
    try {
      await server.logged(/operators' port: (\S+)/);
      const admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
      await until(async () => (await fetch(`${server.url}/health`)).status === 200, () => server.log);
      await server.logged(/intent min-device-hours: 1 of 2 devices, TP 1 x PP 1, bf16, KV int8/);
      let busy = true;
      const answers = Promise.all([0, 1, 2].map(async () => {
        while (busy) {
          const reply = await fetch(`${server.url}/v1/completions`, { method: 'POST',
            body: JSON.stringify({ prompt: 'Once upon a time', max_tokens: 200, ignore_eos: true }) });
          const { usage, error } = await reply.json();
          assert.deepEqual([reply.status, usage?.completion_tokens], [200, 200], error?.message);
        }
      }));
      answers.catch(() => {});  // so that a failure below is what the test reports
      hung = await hangBusiestThread(server.process.pid, () => fetch(`${admin}/admin/models`, { signal: AbortSignal.timeout(4_000) }));
      if (hung.refused) {
        busy = false;
        await answers;
        return t.skip(`this system lets no process stop a thread of another: ${hung.refused}`);
      }
      const body = JSON.stringify({ intent: 'min-latency', batch: 1, prompt_tokens: 16, output_tokens: 200 });
      assert.equal((await fetch(`${admin}/admin/intent`, { method: 'PUT', body })).status, 202);
      const change = await until(async () => {
        const { change: now } = await (await fetch(`${admin}/admin/intent`)).json();
        return ['done', 'failed'].includes(now.state) && now;
      }, () => server.log);
      await server.logged(/intent min-latency: 2 of 2 devices, TP 2 x PP 1, bf16, KV int8/);
      await server.logged(/story: device 0 has not answered for 30 s, and takes no further models/);
      assert.deepEqual([change.state, change.intent], ['done', 'min-latency'], JSON.stringify(change));
      assert.match(change.configuration, /^TP 1 x PP 1, bf16/);
      busy = false;
      await answers;
    } finally {
      await hung?.goOn();
      assert.equal(await server.stop(), 0, server.log);
    }
  });
});
