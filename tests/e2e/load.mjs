// Many impatient clients for a while: LOAD_SECONDS=60 LOAD_STREAMS=256 LOAD_SEED=1 node load.mjs [FLAG...]
// Flags are of the server, such as --tensor-parallel-size 2.
//
// Other clients send garbage, stall, read nothing and reset at the same time. Every well-formed request
// must end without an error. At rest nothing may be running, waiting or holding KV, no file may be
// open, and the server's memory must not have grown since it was warm.

import assert from 'node:assert/strict';
import http from 'node:http';
import net from 'node:net';
import { isIdle, random, Server, sleep, until } from './server.mjs';

const stall = 120_000; // a stream this long without a byte is a failure

// One streamed completion, read to its end or left after `leaveAfter` chunks.
function stream(url, agent, body, leaveAfter) {
  return new Promise((settle, fail) => {
    const request = http.request(`${url}/v1/completions`, {
      agent, method: 'POST', headers: { 'content-type': 'application/json' }, timeout: stall,
    });
    let chunks = 0;
    let text = '';
    const leave = () => {
      request.destroy();
      settle('left');
    };
    request.on('timeout', () => fail(new Error(`nothing for ${stall} ms after ${chunks} chunks`)));
    request.on('error', (error) => (chunks >= leaveAfter ? settle('left') : fail(error)));
    request.on('response', (response) => {
      response.setEncoding('utf8');
      response.on('data', (data) => {
        ++chunks;
        text += data;
        if (chunks >= leaveAfter) leave();
      });
      response.on('end', () => {
        if (response.statusCode !== 200) return fail(new Error(`HTTP ${response.statusCode}: ${text}`));
        if (text.includes('"error"')) return fail(new Error(`an error in the stream: ${text.slice(-300)}`));
        if (!text.endsWith('data: [DONE]\n\n')) return fail(new Error(`no end: ...${text.slice(-100)}`));
        return settle('finished');
      });
      response.on('error', (error) => (chunks >= leaveAfter ? settle('left') : fail(error)));
    });
    if (leaveAfter === 0) setTimeout(leave, 1);
    request.end(JSON.stringify(body));
  });
}

function someRequest(below) {
  const words = ['The dog', 'a bird', 'Lily ran', 'to the park', 'and saw', 'a big tree', 'with Tom', 'happy'];
  const prompt = Array.from({ length: 1 + below(40) }, () => words[below(words.length)]).join(' ');
  return {
    prompt, stream: true, max_tokens: 1 + below(200), temperature: below(2), seed: below(1000), ignore_eos: below(2) === 1,
    stop: below(4) === 0 ? [words[below(words.length)]] : undefined,
  };
}

// Disturbs the server for a moment on a socket of its own.
async function mischief(url, below) {
  // Half open, for Node never closes a socket that is reset while it shuts down, and then cannot exit.
  const socket = net.connect({ host: '127.0.0.1', port: Number(new URL(url).port), allowHalfOpen: true });
  socket.on('error', () => {});
  const body = JSON.stringify({ ...someRequest(below), max_tokens: 400 });
  const request = `POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
  const kind = below(6);
  if (kind === 0) socket.write(Buffer.from(Array.from({ length: 1 + below(5000) }, () => below(256))));
  if (kind === 1) socket.write(request.slice(0, 1 + below(request.length - 1)));
  if (kind === 2) socket.pause().write(request);  // reads nothing
  if (kind === 3) socket.end(request);  // half closed
  if (kind === 4) socket.write(request + 'x'.repeat(below(600_000)));
  if (kind === 5) socket.write('POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n');
  await sleep(20 + below(400));
  if (kind !== 3 && below(2) === 0) socket.resetAndDestroy();
  else socket.destroy();
}

export async function load({ seconds, streams, seed, flags = [] }) {
  // Few KV blocks, so that preemption happens too.
  const server = await Server.start('--max-num-seqs', '48', '--kv-cache-memory', '1MiB', ...flags);
  const count = { finished: 0, left: 0, mischief: 0 };
  const agent = new http.Agent({ keepAlive: true, maxSockets: streams });
  const drive = async (goes, below) => {
    while (goes()) {
      const leaveAfter = below(3) === 0 ? below(20) : Infinity;
      ++count[await stream(server.url, agent, someRequest(below), leaveAfter)];
    }
  };
  const disturb = async (goes, below) => {
    while (goes()) {
      await mischief(server.url, below);
      ++count.mischief;
    }
  };
  // For some time, and until so much has happened that memory is warm and a failure would have been seen.
  const run = (ms, first) => {
    const [end, patience, finished] = [Date.now() + ms, Date.now() + ms + 120_000, count.finished + streams];
    const goes = () => Date.now() < end || (count.finished < finished && Date.now() < patience);
    return Promise.all([
      ...Array.from({ length: streams }, (_, i) => drive(goes, random(first + i))),
      ...Array.from({ length: streams / 16 }, (_, i) => disturb(goes, random(first + streams + i))),
    ]);
  };
  const files = server.openFiles();
  try {
    await run(seconds * 200, seed);
    const warm = server.residentBytes();
    await run(seconds * 800, seed + streams);
    const metrics = await server.idleMetrics();
    const end = server.residentBytes();
    const preemptions = metrics.get('vllm:num_preemptions_total');
    const mib = (bytes) => (bytes / 2 ** 20).toFixed(1);
    console.log(
      `load: ${count.finished} finished, ${count.left} left, ${count.mischief} disturbed, ${preemptions} preemptions, ` +
        `${metrics.get('vllm:generation_tokens_total')} tokens in ${seconds} s; RSS ${mib(warm)} -> ${mib(end)} MiB`,
    );
    assert.ok(isIdle(metrics), `not idle:\n${[...metrics].filter(([n]) => /num_requests|kv_blocks/.test(n)).join('\n')}`);
    assert.ok(count.finished > streams && count.left > 0, 'too little happened to mean anything');
    agent.destroy();
    await until(() => server.openFiles() <= files + 2, () => `${server.openFiles()} files are open, ${files} were`);
    // What the dashboards can show of the last hour grows to 8 MiB. Sanitizers keep what was freed: LOAD_MEMORY=any is for them.
    const shown = Math.min(8, seconds / 30) * 2 ** 20;
    const flat = end < warm * 1.1 + 2 ** 22 + shown || process.env.LOAD_MEMORY === 'any';
    assert.ok(flat, `memory grew from ${mib(warm)} to ${mib(end)} MiB`);
    return count;
  } finally {
    agent.destroy();
    assert.equal(await server.stop(), 0, `exit code after SIGTERM; log:\n${server.log}`);
  }
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  const env = (name, otherwise) => Number(process.env[name] ?? otherwise);
  const flags = process.argv.slice(2);
  await load({ seconds: env('LOAD_SECONDS', 60), streams: env('LOAD_STREAMS', 256), seed: env('LOAD_SEED', 1), flags });
}
