// How long a start takes with a model of the hub's cache, by its name and by the path of its files:
// node bench/start_from_cache.mjs FOLDER [ROUNDS]   (needs build/protean, or PROTEAN)
// Pulls the folder's model from a hub of the tests into a cache, and starts the server by name and by path in turns,
// until it listens. Each has its own packed weights and profile, which a start before the first made.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { commitOf, file, Hub } from '../tests/e2e/hub.mjs';
import { program, Server } from '../tests/e2e/server.mjs';

const folder = resolve(process.argv[2]);
const rounds = Number(process.argv[3] ?? 40);
const commit = commitOf('only');
const files = Object.fromEntries(readdirSync(folder).map((name) =>
  [name, file(readFileSync(join(folder, name)), { lfs: name.endsWith('.safetensors') })]));
const hub = await Hub.start({ 'acme/model': { refs: { main: commit }, commits: { [commit]: files } } });
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

try {
  const env = hub.environment();
  const pull = spawn(program, ['pull', 'acme/model'], { env, stdio: ['ignore', 'pipe', 'inherit'] });
  let pulled = '';
  pull.stdout.on('data', (text) => { pulled += text; });
  const [status] = await once(pull, 'close');
  if (status !== 0) throw new Error('the pull failed');
  const ways = { name: { model: 'acme/model', ms: [], cpuMs: [] }, path: { model: pulled.trim(), ms: [], cpuMs: [] } };
  for (let round = 0; round <= rounds; ++round) {
    for (const way of round % 2 ? ['name', 'path'] : ['path', 'name']) {
      const begun = performance.now();
      const server = await Server.startWith({ path: ways[way].model, env: { ...env, XDG_CACHE_HOME: join(hub.folder, way) } });
      if (round > 0) {
        ways[way].ms.push(performance.now() - begun);
        ways[way].cpuMs.push(1000 * server.cpuSeconds());
      }
      await server.stop();
    }
  }
  for (const unit of ['ms', 'cpuMs']) {
    const [name, path] = [ways.name[unit], ways.path[unit]];
    const ratios = name.map((value, i) => value / path[i]);
    console.log(`${unit === 'ms' ? 'time' : 'CPU time'} by name ${median(name).toFixed(0)} ms, by path ${median(path).toFixed(0)} ms; ` +
      `by name, of that by path in the same round: ${median(ratios).toFixed(3)} (medians of ${rounds})`);
  }
} finally {
  hub.close();
}
