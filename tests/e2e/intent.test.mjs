// protean serve --intent: the form that a server starts in is the one that protean plan chooses.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { builtin, program, Server, sleep } from './server.mjs';

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
    const server = await Server.startBuiltin(...cache(), '--devices', '2', '--intent', 'min-memory');
    try {
      await server.logged(/listening/);
      assert.match(server.log, /intent min-memory: 1 of 2 devices, TP 1 x PP 1, w4(a8)?, KV int8/);
      assert.ok(names.some((name) => server.log.includes(name)), `${names} in ${server.log}`);
      for (let i = 0; i < 200 && (await fetch(`${server.url}/health`)).status !== 200; ++i) await sleep(50);
      const answer = await fetch(`${server.url}/v1/completions`, {
        method: 'POST', headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ prompt: 'The', max_tokens: 4 }),
      });
      assert.equal(answer.status, 200);
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
        { encoding: 'utf8', timeout: 60_000 });
      assert.notEqual(status, 0);
      assert.match(stderr, words);
    });
  }
});
