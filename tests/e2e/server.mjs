// Starts the real program on a free port with a small trained model, and reads its /metrics.

import { spawn } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { after } from 'node:test';
import { fileURLToPath } from 'node:url';

export const root = resolve(dirname(fileURLToPath(import.meta.url)), '../..');
export const program = process.env.PROTEAN ?? resolve(root, 'build/protean');
export const data = resolve(root, process.env.PROTEAN_DATA ?? '../shared/data');
export const model = resolve(data, 'models/tinystories-656k');
export const modelName = 'tinystories-656k';

// The model that ships with Protean has a token for every byte, which forms and tools need.
export const builtin = resolve(root, 'models/builtin');

// Why there is nothing to test here, or false.
export const skip = existsSync(model) ? false : `needs ${model}; set PROTEAN_DATA to the test data folder`;

// True if the program has sanitizers: it is slow, and its memory grows. Tests then leave out what finds nothing more about memory.
export const instrumented = process.env.LOAD_MEMORY === 'any';

// A small generator of our own, so that clients can repeat themselves.
export function random(seed) {
  let state = seed >>> 0;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

// A port below those that the system gives to clients, for a server that starts again on the port it had.
export const ownPort = () => String(20_000 + (process.pid % 10_000));

// Node would wait for the servers that a failed test left. This hook is the first one; those of the tests still stop theirs.
// A program that is no test has no hooks.
const running = new Set();
const killAll = () => running.forEach((server) => server.process.kill('SIGKILL'));
if (process.env.NODE_TEST_CONTEXT) after(() => void setTimeout(killAll, patienceMs / 4).unref());

export class Server {
  static async start(...flags) {
    return Server.startWith({}, ...flags);
  }

  static async startBuiltin(...flags) {
    return Server.startWith({ path: builtin }, ...flags);
  }

  // With other environment variables, another program or model. `path` may be a list of arguments.
  static async startWith({ env = {}, as = program, path = model }, ...flags) {
    const server = new Server();
    const host = flags.includes('--host') ? [] : ['--host', '127.0.0.1'];
    const port = flags.includes('--port') ? [] : ['--port', '0'];
    server.process = spawn(as, ['serve', ...[path].flat(), ...host, ...port, ...flags], {
      stdio: ['ignore', 'inherit', 'pipe'], env: { ...process.env, ...env },
    });
    server.ended = new Promise((settle) => {
      server.process.once('error', (error) => settle(`could not start: ${error.message}`));
      server.process.once('close', (code, signal) => settle(signal ?? code));
    });
    running.add(server);
    server.ended.then(() => running.delete(server));
    server.log = '';
    server.url = await new Promise((settle, fail) => {
      server.process.stderr.setEncoding('utf8').on('data', (text) => {
        server.log += text;
        const listening = server.log.match(/listening on (https?:\/\/[^\s"]+)[\s"]/);
        if (listening) settle(listening[1]);
      });
      server.ended.then((how) => fail(new Error(`${program} ended (${how}) before it listened:\n${server.log}`)));
    });
    return server;
  }

  // Until its log holds something; the match. A line may come after the answer to a request that caused it, since a thread
  // of its own writes the log.
  async logged(pattern) {
    return until(() => this.log.match(pattern), () => this.log);
  }

  // SIGTERM; its exit code once it has drained.
  async stop() {
    this.process.kill('SIGTERM');
    return this.ended;
  }

  // Samples by name with labels, and by bare name the sum over labels.
  async metrics() {
    const response = await fetch(`${this.url}/metrics`);
    return parseMetrics(await response.text());
  }

  // Polls until nothing runs, waits or holds KV; the metrics at that time, or the last ones seen.
  async idleMetrics() {
    for (const end = Date.now() + patienceMs; ;) {
      const now = await this.metrics();
      if (isIdle(now) || Date.now() > end) return now;
      await sleep(20);
    }
  }

  openFiles() {
    return readdirSync(`/proc/${this.process.pid}/fd`).length;
  }

  cpuSeconds() {
    const fields = readFileSync(`/proc/${this.process.pid}/stat`, 'utf8').replace(/^.*\) /, '').split(' ');
    return (Number(fields[11]) + Number(fields[12])) / 100;
  }

  residentBytes() {
    const status = readFileSync(`/proc/${this.process.pid}/status`, 'utf8');
    return Number(status.match(/^VmRSS:\s+(\d+) kB$/m)[1]) * 1024;
  }
}

export const sleep = (ms) => new Promise((wake) => setTimeout(wake, ms));

// How long tests wait for what must come: far longer than it takes on a machine that has more to do.
const patienceMs = instrumented ? 300_000 : 120_000;

// Waits until `done` returns what counts as true, and returns that. Fails with what `seen` says if it does not.
export async function until(done, seen = () => '') {
  for (const end = Date.now() + patienceMs; ;) {
    const result = await done();
    if (result) return result;
    if (Date.now() > end) throw new Error(`it never came to this: ${done}\n${await seen()}`);
    await sleep(20);
  }
}

export function isIdle(metrics) {
  return ['vllm:num_requests_running', 'vllm:num_requests_waiting', 'protean:kv_blocks_used'].every(
    (name) => metrics.get(name) === 0,
  );
}

export function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split('\n')) {
    if (line === '' || /^# (HELP|TYPE) [\w:]+ \S/.test(line)) continue;
    const sample = line.match(/^([a-zA-Z_:][\w:]*)(\{(?:\w+="(?:\\.|[^"\\])*",?)*\})? (\S+)$/);
    const value = sample && (sample[3] === '+Inf' ? Infinity : Number(sample[3]));
    if (!sample || Number.isNaN(value)) throw new Error(`/metrics holds a line that is no sample: ${line}`);
    samples.set(sample[1] + (sample[2] ?? ''), value);
    if (sample[2]) samples.set(sample[1], (samples.get(sample[1]) ?? 0) + value);
  }
  return samples;
}
