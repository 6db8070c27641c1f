// Tests `protean bench` against a server with known delays, against the real server, and with errors.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { Server, skip, sleep, until } from './server.mjs';

const root = resolve(import.meta.dirname ?? new URL('.', import.meta.url).pathname, '../..');
const program = process.env.PROTEAN ?? join(root, 'build/protean');
const traces = join(process.env.PROTEAN_DATA ?? join(root, '../shared/data'), 'traces');
const scratch = mkdtempSync(join(tmpdir(), 'protean-bench-'));
after(() => rmSync(scratch, { recursive: true, force: true }));

const leastTenth = (numbers) => numbers.sort((a, b) => a - b)[Math.floor(numbers.length / 10)];
const nowMs = () => Number(process.hrtime.bigint()) / 1e6;

function start(...args) {
  const child = spawn(program, ['bench', ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
  const output = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr']) {
    child[name].setEncoding('utf8').on('data', (text) => (output[name] += text));
  }
  const ended = new Promise((settle) => child.once('close', (status) => settle({ status, ...output })));
  return { child, ended };
}
const bench = (...args) => start(...args).ended;

// Answers with tokens at fixed times. Records requests and when it wrote the tokens.
class FixedDelayServer {
  requests = new Map();

  static async start(ttftMs, tpotMs, tokens, contextTokens = Infinity) {
    const server = new FixedDelayServer();
    server.contextTokens = contextTokens;
    server.http = http.createServer((request, response) => {
      let body = '';
      request.setEncoding('utf8').on('data', (text) => (body += text));
      request.on('end', () => {
        const seen = { readMs: nowMs(), body: JSON.parse(body || '{}'), headers: request.headers, writtenMs: [] };
        if (request.method === 'GET') return response.writeHead(404).end();
        server.requests.set(request.headers['x-request-id'], seen);
        return server.answer(response, seen, ttftMs, tpotMs, tokens);
      });
    });
    await new Promise((settle) => server.http.listen(0, '127.0.0.1', settle));
    server.url = `http://127.0.0.1:${server.http.address().port}`;
    return server;
  }

  async answer(response, seen, ttftMs, tpotMs, tokens) {
    const words = (text) => (typeof text === 'string' ? text.split(' ').length : text.length);
    const promptTokens = words(seen.body.prompt) * 2 + 1;
    if (promptTokens > this.contextTokens) {
      return response.writeHead(400).end('{"error": {"message": "the context is too short"}}');
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.flushHeaders();
    for (let i = 0; i < tokens; ++i) {
      await sleep(Math.max(0, seen.readMs + ttftMs + i * tpotMs - nowMs()));
      seen.writtenMs.push(nowMs());
      response.write(`data: ${JSON.stringify({ choices: [{ index: 0, text: ' a' }] })}\n\n`);
    }
    const usage = { prompt_tokens: promptTokens, completion_tokens: tokens };
    response.write(`data: ${JSON.stringify({ choices: [{ index: 0, text: '', finish_reason: 'length' }] })}\n\n`);
    response.write(`data: ${JSON.stringify({ choices: [], usage })}\n\n`);
    return response.end('data: [DONE]\n\n');
  }

  stop() {
    this.http.closeAllConnections();
    this.http.close();
  }
}

describe('bench serve against known delays', () => {
  let server;
  let quick;  // for what does not depend on delays
  before(async () => {
    server = await FixedDelayServer.start(100, 20, 30);
    quick = await FixedDelayServer.start(1, 1, 3);
  });
  after(() => {
    server.stop();
    quick.stop();
  });

  // Runs 100 streams. Returns by how many ms a tenth of the requests is off at most.
  const measured = async () => {
    const file = join(scratch, 'fixed.json');
    server.requests.clear();
    const { status, stderr } = await bench('serve', '--base-url', server.url, '--model', 'm', '--json', file,
      '--num-prompts', '200', '--max-concurrency', '100', '--random-input-len', '21', '--random-output-len', '30');
    assert.equal(status, 0, stderr);
    const result = JSON.parse(readFileSync(file, 'utf8'));
    assert.equal(result.completed, 200);
    assert.equal(result.total_output_tokens, 200 * 30);
    assert.equal(result.total_input_tokens, 200 * 21, 'the words of a prompt were calibrated');
    const errors = { ttft: [], tpot: [] };
    for (const request of result.requests) {
      // The client's and the server's times are on the same clock.
      const { writtenMs } = server.requests.get(`bench-${request.index}`);
      const sentMs = result.clock_start_ns / 1e6 + request.sent_s * 1000;
      const late = request.ttft_ms - (writtenMs[0] - sentMs);
      assert.ok(late > -1, `a token came ${-late} ms before it was written`);
      errors.ttft.push(late);
      errors.tpot.push(Math.abs(request.tpot_ms - (writtenMs.at(-1) - writtenMs[0]) / 29));
    }
    const [ttft, tpot] = [leastTenth(errors.ttft), leastTenth(errors.tpot)];
    console.log(`bench: a tenth is off by less than ${ttft.toFixed(2)} ms of TTFT, a tenth by ${tpot.toFixed(3)} ms of TPOT; ` +
      `own CPU ${(result.generator.cpu_share * 100).toFixed(1)} % of a core`);
    return { ttft, tpot };
  };

  // A busy machine delays most requests of some runs, a wrong measure is wrong in all; bench/loadtest_bench has tight limits.
  test('TTFT and TPOT of 100 streams equal the server\'s', async () => {
    let off;
    await until(async () => {
      off = await measured();
      return off.ttft < 15 && off.tpot < 1;
    }, () => JSON.stringify(off));
  });

  test('the same seed gives the same requests, another seed others', async () => {
    const prompts = async (seed) => {
      quick.requests.clear();
      const { status, stderr } = await bench('serve', '--base-url', quick.url, '--model', 'm', '--request-rate', '50',
        '--num-prompts', '10', '--random-range-ratio', '0.5', '--random-input-len', '40', '--seed', seed, '--quiet');
      assert.equal(status, 0, stderr);
      return Array.from({ length: 10 }, (_, i) => quick.requests.get(`bench-${i}`).body);
    };
    const first = await prompts('1');
    assert.deepEqual(await prompts('1'), first);
    assert.notDeepEqual(await prompts('2'), first);
    assert.ok(first.every((body) => body.stream && body.stream_options.include_usage));
  });

  test('Ctrl-C ends the run early and still reports', async () => {
    const file = join(scratch, 'cut.json');
    server.requests.clear();
    const { child, ended } = start('serve', '--base-url', server.url, '--model', 'm', '--request-rate', '20',
      '--num-prompts', '1000', '--random-input-len', '20', '--json', file);
    const answered = () => [...server.requests.values()].filter(({ writtenMs }) => writtenMs.length === 30).length;
    await until(() => server.requests.has('bench-60') && answered() > 20);
    child.kill('SIGINT');
    const { status, stdout } = await ended;
    assert.equal(status, 130);
    assert.match(stdout, /interrupted/);
    const result = JSON.parse(readFileSync(file, 'utf8'));
    assert.ok(result.completed > 5 && result.completed + result.interrupted < 1000, `${result.completed}`);
    assert.ok(result.interrupted > 0);
    assert.equal(result.failed, 0);
  });

  test('keys, headers and bodies are sent as configured', async () => {
    quick.requests.clear();
    const { status, stderr } = await bench('serve', '--base-url', quick.url, '--model', 'm', '--api-key', 'secret',
      '--num-prompts', '2', '--header', 'X-Tenant=a', '--extra-body', '{"top_k": 4}', '--ignore-eos',
      '--token-ids', '10:19', '--random-input-len', '12', '--random-output-len', '5');
    assert.equal(status, 0, stderr);
    const { headers, body } = quick.requests.get('bench-1');
    assert.equal(headers.authorization, 'Bearer secret');
    assert.equal(headers['x-tenant'], 'a');
    assert.deepEqual([body.model, body.max_tokens, body.top_k, body.ignore_eos], ['m', 5, 4, true]);
    assert.equal(body.prompt.length, 12);
    assert.ok(body.prompt.every((id) => id >= 10 && id <= 19));
  });

  test('probes are no longer than the prompts of the run', async () => {
    const small = await FixedDelayServer.start(1, 1, 3, 40);
    const serve = (...args) => bench('serve', '--base-url', small.url, '--model', 'm', '--num-prompts', '3', '--quiet', ...args);
    const probes = () => [...small.requests].filter(([id]) => id.startsWith('bench-probe')).map(([, { body }]) => body.prompt);
    const words = await serve('--random-input-len', '31');
    assert.equal(words.status, 0, words.stderr);
    assert.ok(probes().length > 0 && probes().every((prompt) => prompt.split(' ').length <= 15));
    assert.equal(small.requests.get('bench-2').body.prompt.split(' ').length, 15, 'the words were calibrated all the same');
    small.requests.clear();
    const ids = await serve('--token-ids', '10:19', '--random-input-len', '12');
    assert.equal(ids.status, 0, ids.stderr);
    assert.deepEqual(probes().map((prompt) => [Array.isArray(prompt), prompt.length <= 8]), [[true, true]]);
    small.stop();
  });

  test('warm-ups come first, have other prompts and are not measured', async () => {
    quick.requests.clear();
    const file = join(scratch, 'warm.json');
    const { status, stdout, stderr } = await bench('serve', '--base-url', quick.url, '--model', 'm', '--num-prompts', '4',
      '--num-warmups', '3', '--random-input-len', '30', '--random-output-len', '7', '--json', file, '--tokens-per-word', '1');
    assert.equal(status, 0, stderr);
    assert.match(stdout, /3 warm-up requests/);
    assert.equal(JSON.parse(readFileSync(file, 'utf8')).completed, 4);
    const ids = [...quick.requests.keys()];
    assert.deepEqual(ids.slice(0, 3).sort(), [0, 1, 2].map((i) => `bench-warmup-${i}`));
    const bodies = [...quick.requests.values()].map(({ body }) => body);
    assert.ok(bodies.every((body) => body.max_tokens === 7 && body.prompt.split(' ').length === 30));
    assert.equal(new Set(bodies.map((body) => body.prompt)).size, 7, 'all prompts differ');
  });

  test('metrics may be on another server, which does not get the key', async () => {
    const asked = [];
    const metrics = http.createServer((request, response) => {
      asked.push([request.url, request.headers.authorization]);
      response.end('vllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.5\n');
    });
    await new Promise((settle) => metrics.listen(0, '127.0.0.1', settle));
    const origin = `http://127.0.0.1:${metrics.address().port}`;
    const file = join(scratch, 'metrics.json');
    for (const [url, path] of [[origin, '/metrics'], [`${origin}/of/it`, '/of/it']]) {
      asked.length = 0;
      const { status, stderr } = await bench('serve', '--base-url', quick.url, '--model', 'm', '--api-key', 'secret',
        '--num-prompts', '2', '--metrics-url', url, '--json', file, '--random-input-len', '9');
      assert.equal(status, 0, stderr);
      assert.deepEqual(asked[0], [path, undefined]);
      assert.equal(JSON.parse(readFileSync(file, 'utf8')).server_metrics[0].running, 3);
    }
    metrics.closeAllConnections();
    metrics.close();
  });

  test('a TOML file sets flags, and the command line overrides them', async () => {
    quick.requests.clear();
    const file = join(scratch, 'bench.toml');
    writeFileSync(file, `[bench.serve]\nbase_url = "${quick.url}"\nmodel = "of-the-file"\nnum_prompts = 3\n` +
      'random-output-len = 6\nignore_eos = true\nheader = ["X-A=1", "X-B=2"]\n[serve]\nport = 1\n');
    const { status, stderr } = await bench('serve', '--config', file, '--num-prompts', '2', '--random-input-len', '8');
    assert.equal(status, 0, stderr);
    assert.ok(quick.requests.has('bench-1') && !quick.requests.has('bench-2'));
    const { body, headers } = quick.requests.get('bench-1');
    assert.deepEqual([body.model, body.max_tokens, body.ignore_eos], ['of-the-file', 6, true]);
    assert.deepEqual([headers['x-a'], headers['x-b']], ['1', '2']);
    writeFileSync(file, '[bench.serve]\nnum-promts = 3\n');
    const wrong = await bench('serve', '--config', file);
    assert.equal(wrong.status, 2);
    assert.match(wrong.stderr, /line 2: 'num-promts' is no flag of protean bench serve/);
  });

  test('replays a Mooncake trace with its shared prefixes', { skip: existsSync(traces) ? false : `needs ${traces}` },
    async () => {
      server.requests.clear();
      const { status, stdout, stderr } = await bench('serve', '--base-url', server.url, '--model', 'm', '--quiet',
        '--trace', join(traces, 'mooncake/conversation_trace.jsonl'), '--limit', '4', '--length-scale', '0.01');
      assert.equal(status, 0, stderr);
      assert.match(stdout, /Mooncake/);
      const texts = [0, 1, 2, 3].map((i) => server.requests.get(`bench-${i}`).body.prompt.split(' '));
      for (const text of texts) assert.deepEqual(text.slice(0, 2), texts[0].slice(0, 2), 'all prompts begin with block 0');
      assert.notDeepEqual(texts[0].slice(0, 12), texts[1].slice(0, 12));
    });
});

describe('bench serve against the real server', { skip }, () => {
  let server;
  before(async () => { server = await Server.start(); });
  after(async () => assert.equal(await server?.stop(), 0, server?.log));
  const load = ['--num-prompts', '40', '--max-concurrency', '8', '--random-input-len', '60', '--random-output-len',
    '96', '--ignore-eos', '--quiet', '--metrics-interval', '0.005'];  // a small part of the time a fast machine takes

  test('measures, reports and compares', async () => {
    const files = ['a', 'b'].map((name) => join(scratch, `${name}.json`));
    const page = join(scratch, 'report.html');
    for (const [i, file] of files.entries()) {
      const { status, stdout, stderr } = await bench('serve', '--base-url', server.url, '--json', file, '--html', page,
        '--goodput', 'ttft:60000', 'tpot:1', '--seed', String(i), ...load);
      assert.equal(status, 0, stderr);
      for (const part of ['TTFT', 'P99', 'goodput', 'counted by the server']) assert.ok(stdout.includes(part), stdout);
    }
    const result = JSON.parse(readFileSync(files[0], 'utf8'));
    assert.equal(result.completed, 40);
    assert.equal(result.total_output_tokens, 40 * 96);
    assert.ok(Math.abs(result.total_input_tokens / 40 - 60) < 9, `${result.total_input_tokens / 40} tokens a prompt`);
    assert.ok(result.server_metrics.some((sample) => sample.running > 0 && sample.kv_use > 0), 'metrics show running requests');
    assert.ok(result.server_mean_ttft_ms > 0);
    assert.match(readFileSync(page, 'utf8'), /KV cache in use[\s\S]*<svg/);

    const { status, stdout } = await bench('compare', ...files);
    assert.equal(status, 0);
    assert.match(stdout, /loads differ[^]*\n  seed: A 0, B 1\n/);
    assert.match(stdout, /TTFT P99 ms .* \d\.\d{3} - \d+\.\d{3}/);
    assert.equal((await bench('--compare', ...files)).stdout, stdout, 'both spellings print the same');
  });

  test('chats', async () => {
    const { status, stdout, stderr } = await bench('serve', '--url', server.url, '--endpoint', 'chat', '--json', '-', ...load);
    assert.equal(status, 0, stderr);
    assert.equal(JSON.parse(stdout).completed, 40);
  });
});

test('errors of users: one line, exit code 2', async () => {
  const bad = join(scratch, 'bad.csv');
  writeFileSync(bad, 'TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,12,x\n');
  for (const [args, words] of [
    [['serve', '--base-url', 'localhost:8000'], /--base-url/],
    [['serve', '--base-url', 'http://127.0.0.1:1', '--model', 'm'], /127\.0\.0\.1:1.*refused/],
    [['serve', '--trace', bad], /bad\.csv: line 2: 'x'/],
    [['serve', '--trace', join(scratch, 'none')], /none/],
    [['serve', '--endpoint', 'embeddings'], /--endpoint/],
    [['serve', '--metrics-url', 'localhost:9'], /--metrics-url 'localhost:9'/],
    [['serve', '--num-warmups', '-1'], /--num-warmups/],
    [['serve', '--goodput', 'tpot'], /--goodput 'tpot'/],
    [['serve', '--request-rate', '-3'], /--request-rate/],
    [['serve', '--endpoint', 'chat', '--token-ids', '1:2'], /--token-ids/],
    [['serve', '--burst', '1'], /--burst/],
    [['compare', bad, bad], /bad\.csv/],
  ]) {
    const { status, stdout, stderr } = await bench(...args);
    assert.equal(status, 2, `${args.join(' ')}: ${stderr}`);
    assert.equal(stdout, '');
    assert.match(stderr, words);
  }
});
