// PUT /admin/intent: a model that gets other devices hands its requests over with their KV.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { editedCache } from './edited_costs.mjs';
import { builtin, Server, until } from './server.mjs';

let scratch;
before(() => { scratch = mkdtempSync(join(tmpdir(), 'protean-hand-over-')); });
after(() => rmSync(scratch, { recursive: true, force: true }));

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
    const folder = editedCache(scratch, 'edited', 'of.update({field: of[field] * (50 if name == "bf16" else 5000) for field in ("step_us", "token_us")})');
    server = await Server.startWith({ path: ['--model', `story=${builtin}`] }, '--variant-cache', folder, '--admin-port', '0', '--devices', '2',
      '--intent', 'min-device-hours', '--kv-cache-memory', '8MiB', '--max-num-seqs', '8');
    await server.logged(/operators' port: (\S+)/);
    admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
    await until(async () => (await fetch(`${server.url}/health`)).status === 200, () => server.log);
    assert.match(server.log, /intent min-device-hours: 1 of 2 devices, TP 1 x PP 1, bf16, KV int8/);
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
