// Variants that a server packs in the background while it serves.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { complete, form, layers, packed, settled, startForm, want } from './form.mjs';
import { sleep, until } from './server.mjs';

// Waits until the server has looked at the disk for variants that it has to pack.
async function looked(server) {
  return until(async () => {
    const now = await form(server);
    return now.packing !== null && now;
  });
}

describe('variants that are not packed yet', () => {
  it('delay no answer and no end, are packed by who asks for them, and where packing was stopped it goes on', async () => {
    const cache = mkdtempSync(join(tmpdir(), 'protean-morph-'));
    const first = await startForm(cache);  // makes the cache's folder
    assert.equal(await first.stop(), 0, first.log);
    const lock = readdirSync(cache, { recursive: true }).find((name) => name.endsWith('in-use')).replace('in-use', 'lock');
    const other = spawn('flock', ['--no-fork', join(cache, lock), 'sleep', '600']);  // another process that packs
    const start = () => startForm(cache, {}, '--morph', 'balanced');
    const precise = Array(layers).fill('bf16');
    const low = Array(layers).fill('w4');
    let server;
    try {
      while (spawnSync('flock', ['--nonblock', join(cache, lock), 'true']).status === 0) await sleep(10);
      server = await start();
      const { text } = await complete(server);
      const { packing, form: { layer_precision: precision } } = await looked(server);
      assert.deepEqual([packing.done, packing.failure, precision], [0, null, precise]);
      assert.equal((await want(server, { layers: 'w4' })).status, 202);
      assert.deepEqual((await settled(server)).form.layer_precision, low);
      const { morphs } = await (await fetch(`${server.admin}/admin/morphs`)).json();
      assert.ok(morphs.every(({ remark, failure }) => remark === null && failure === null), 'nothing was amiss');
      assert.equal((await form(server)).packing.done, 0);
      assert.equal(await server.stop(), 0, server.log);
      assert.equal(other.exitCode, null, 'it does not wait for the other process');
      server = await start();
      other.kill();
      assert.equal((await packed(server)).total, packing.total);
      assert.equal((await complete(server)).text, text);
      assert.equal(await server.stop(), 0, server.log);
      server = await start();
      assert.equal((await looked(server)).packing.done, packing.total, 'they are there');
    } finally {
      other.kill();
      assert.equal(await server?.stop(), 0, server?.log);
      rmSync(cache, { recursive: true });
    }
  });
});
