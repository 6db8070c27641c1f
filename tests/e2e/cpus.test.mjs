// Threads that compute run on the CPUs of --cpus; other threads run anywhere.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { model, program, Server, skip, until } from './server.mjs';

const allowedIn = (folder) => readFileSync(`${folder}/status`, 'utf8').match(/Cpus_allowed_list:\s*(\S+)/)[1];
const all = allowedIn('/proc/self');
const [first] = all.split(/[-,]/);
const inspect = (...flags) => spawnSync(program, ['inspect', model, ...flags], { encoding: 'utf8' });

// Returns the CPUs that each thread of a server may use, as soon as `done` accepts them.
async function allowedOf(server, done) {
  const tasks = `/proc/${server.process.pid}/task`;
  let lists;
  await until(() => {
    lists = readdirSync(tasks).flatMap((task) => {
      try { return [allowedIn(`${tasks}/${task}`)]; } catch { return []; } // it has ended since
    }).sort();
    return done(lists);
  }, () => lists);
  return lists;
}

describe('--cpus', { skip }, () => {
  it('pins the threads that compute, and no other', async () => {
    const server = await Server.start('--cpus', first, '--device-memory', '64MiB', '--morph', 'balanced');
    const pinned = (list) => list === first;
    const answer = await fetch(`${server.url}/v1/completions`, { method: 'POST', body: JSON.stringify({ prompt: 'Once', max_tokens: 8 }) });
    assert.equal(answer.status, 200, await answer.text());
    // Threads that make a fingerprint are pinned too, and end.
    await allowedOf(server, (now) => now.filter((list) => list === all).length >= 3 && (all === first || now.filter(pinned).length === 1));
    assert.equal(await server.stop(), 0);
    assert.match(server.log, new RegExp(`1 thread on CPU ${first}, pinned`));
  });

  it('is all that may be used unless given, and nothing is pinned', async () => {
    const server = await Server.start();
    const lists = await allowedOf(server, (now) => now.length >= 4);
    assert.equal(await server.stop(), 0);
    assert.ok(lists.every((list) => list === all), `${lists}`);
    assert.doesNotMatch(server.log, /pinned/);
  });

  it('is said by inspect', () => {
    assert.match(inspect('--cpus', first).stdout, new RegExp(`computes with +1 thread on CPU ${first}, pinned\n`));
    assert.match(inspect('--threads', '7').stdout, /computes with +7 threads on CPU/);
  });

  it('is refused by name where it is wrong', () => {
    for (const [list, why] of [['none', /--cpus: 'none' is not a list/], ['60000', /--cpus 60000: this process may use/]]) {
      const { status, stderr } = inspect('--cpus', list);
      assert.equal(status, 2);
      assert.match(stderr, why);
    }
  });
});
