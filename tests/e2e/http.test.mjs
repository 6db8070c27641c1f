// What the server says to input that is wrong, hostile, slow or half there; over raw sockets, and
// after each it must still serve. Then keys, TLS, operators, logs, traces, drains and kills.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { instrumented, model, modelName, parseMetrics, program, Server, skip, sleep, until } from './server.mjs';

// Sends bytes as they are; the answers, split, once the server hangs up or `enough` have come.
function raw(server, bytes, { enough = 1, half = false, patience = 120_000 } = {}) {
  return new Promise((settle, fail) => {
    const socket = net.connect(Number(new URL(server.url).port), '127.0.0.1');
    const late = setTimeout(() => { socket.destroy(); fail(new Error(`no answer to ${String(bytes).slice(0, 60)}`)); }, patience);
    let text = '';
    const done = () => {
      clearTimeout(late);
      socket.destroy();
      settle(answersIn(text));
    };
    socket.setEncoding('latin1').on('data', (data) => {
      text += data;
      if (answersIn(text).length >= enough) done();
    });
    socket.on('error', done).on('close', done);
    if (half) socket.end(bytes);
    else socket.write(bytes);
  });
}

function answersIn(text) {
  const answers = [];
  for (let rest = text; ;) {
    const end = rest.indexOf('\r\n\r\n');
    if (end < 0) return answers;
    const status = Number(rest.slice(9, 12));
    const length = Number(rest.slice(0, end).match(/content-length: (\d+)/i)?.[1] ?? 0);
    if (rest.length < end + 4 + length) return answers;
    answers.push({ status, head: rest.slice(0, end), body: rest.slice(end + 4, end + 4 + length) });
    rest = rest.slice(end + 4 + length);
  }
}

const post = (body, path = '/v1/chat/completions', headers = '') =>
  Buffer.concat([Buffer.from(`POST ${path} HTTP/1.1\r\nHost: localhost\r\n${headers}Content-Length: ${Buffer.byteLength(body)}\r\n\r\n`), Buffer.from(body)]);
const chat = (fields) => post(JSON.stringify({ messages: [{ role: 'user', content: 'hi' }], max_tokens: 1, ...fields }));
const begin = 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n';
const chunked = `${begin}Transfer-Encoding: chunked\r\n\r\n`;

const attacks = [
  ['no JSON', post('{"messages": nope}'), 400, 'invalid_request', /line 1/],
  ['JSON cut short', post('{"messages": ['), 400, 'invalid_request', /line 1/],
  ['an empty body', post(''), 400, 'invalid_request', /JSON|empty/],
  ['no UTF-8', post(Buffer.from([0x7b, 0x22, 0x6d, 0x22, 0x3a, 0x22, 0xff, 0xfe, 0x22, 0x7d])), 400, 'invalid_request', /line 1/],
  ['a key twice', post('{"prompt": "a", "prompt": "b"}', '/v1/completions'), 400, 'invalid_request', /twice|duplicate/],
  ['a depth bomb', post(`{"messages": ${'['.repeat(100_000)}`), 400, 'invalid_request', /nest|deep/],
  ['a body of 100 MB', `${begin}Content-Length: 100000000\r\n\r\n${'x'.repeat(100_000)}`, 413, 'request_too_large', /16777216/],
  ['100 MB in chunks', `${chunked}5f5e100\r\n${'x'.repeat(100_000)}`, 413, 'request_too_large', /16777216/],
  ['more context than there is', post(JSON.stringify({ prompt: 'word '.repeat(5000) }), '/v1/completions'), 400, /./, /token|context|long/],
  ['a negative number', chat({ max_tokens: -1 }), 400, 'invalid_request', /max_tokens/],
  ['NaN', post('{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}'), 400, 'invalid_request', /line 1/],
  ['a huge number', chat({ temperature: 1e300 }), 400, 'invalid_request', /temperature/],
  ['a huge integer', post('{"prompt": "a", "max_tokens": 99999999999999999999}', '/v1/completions'), 400, 'invalid_request', /max_tokens/],
  ['an infinite number in a schema', post('{"prompt": "a", "guided_json": {"minLength": 1e400}}', '/v1/completions'), 400, 'invalid_request', /double/],
  ['a wrong type', chat({ stream: 'yes' }), 400, 'invalid_request', /stream/],
  ['an unknown model', chat({ model: 'gpt-9' }), 404, 'model_not_found', /gpt-9/],
  ['an unknown path', 'GET /v2/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n', 404, 'not_found', /v2/],
  ['a wrong method', 'DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n', 405, 'method_not_allowed', /GET/],
  ['a compressed body', `${begin}Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}`, 415, 'unsupported_media_type', /gzip/],
  ['both lengths', `${begin}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`, 400, 'invalid_request', /exclude|Encoding/],
  ['both lengths, swapped', `${begin}Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n`, 400, 'invalid_request', /exclude|Length/],
  ['two lengths', `${begin}Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd`, 400, 'invalid_request', /Content-Length|Content/i],
  ['the same length twice', `${begin}Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc`, 400, 'invalid_request', /Content-Length/],
  ['a list of lengths', `${begin}Content-Length: 3, 3\r\n\r\nabc`, 400, 'invalid_request', /Content-Length|digits/],
  ['a signed length', `${begin}Content-Length: +3\r\n\r\nabc`, 400, 'invalid_request', /Content-Length|HTTP/],
  ['an encoding of encodings', `${begin}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n`, 501, 'not_implemented', /chunked/],
  ['a space before the colon', `${begin}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n`, 400, 'invalid_request', /HTTP/],
  ['a chunk size of 0x1', `${chunked}0x1\r\nx\r\n0\r\n\r\n`, 400, 'invalid_request', /hexadecimal/],
  ['a chunk size of -1', `${chunked}-1\r\nx\r\n0\r\n\r\n`, 400, 'invalid_request', /hexadecimal/],
  ['a chunk that is longer than it says', `${chunked}1\r\nxyz\r\n0\r\n\r\n`, 400, 'invalid_request', /chunk/],
  ['chunks with bare LF', `${chunked}1\nx\n0\n\n`, 400, 'invalid_request', /CR LF/],
  ['a folded header', `${begin}X: a\r\n b\r\n\r\n`, 400, 'invalid_request', /fold/],
  ['headers with bare LF', 'GET /health HTTP/1.1\nHost: x\n\n', 400, 'invalid_request', /LF/],
  ['a NUL in a header', `${begin}X: a\0b\r\n\r\n`, 400, 'invalid_request', /HTTP/],
  ['a header of 1 MB', `${begin}X: ${'x'.repeat(1_000_000)}`, 431, 'headers_too_large', /16384/],
  ['no Host', 'GET /health HTTP/1.1\r\n\r\n', 400, 'invalid_request', /Host/],
  ['two Hosts', 'GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n', 400, 'invalid_request', /Host/],
  ['an unknown expectation', `${begin}Expect: wonders\r\nContent-Length: 2\r\n\r\n{}`, 417, 'expectation_failed', /100-continue/],
  ['TLS', '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n', 400, 'invalid_request', /http:\/\//],
  ['no HTTP at all', '\x01\x02 hello\r\n\r\n', 400, 'invalid_request', /HTTP/],
  ['a foreign name', 'GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n', 403, 'forbidden', /--allowed-hosts/],
  ['a foreign page', `${begin}Origin: https://evil.example\r\nContent-Length: 2\r\n\r\n{}`, 403, 'forbidden', /--allow-origin/],
  ['HTTP/2', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 400, 'invalid_request', /HTTP/],
];

describe('bad input', { skip }, () => {
  let server;
  before(async () => { server = await Server.start(); });
  after(async () => assert.equal(await server.stop(), 0));

  for (const [name, bytes, status, code, message] of attacks) {
    it(`${name}: ${status}`, async () => {
      const [answer] = await raw(server, typeof bytes === 'string' ? Buffer.from(bytes, 'latin1') : bytes);
      assert.ok(answer, 'no answer');
      assert.equal(answer.status, status, answer.body);
      const { error } = JSON.parse(answer.body);
      assert.deepEqual(Object.keys(error).sort(), ['code', 'message', 'param', 'type']);
      if (code instanceof RegExp) assert.match(String(error.code), code);
      else assert.equal(error.code, code, error.message);
      assert.match(error.message, message);
      assert.equal((await fetch(`${server.url}/health`)).status, 200);
    });
  }

  it('sockets that are half closed, reset or silent', async () => {
    const half = await raw(server, 'GET /heal', { half: true });
    assert.equal(half[0].status, 400);
    const asked = await raw(server, chat({ max_tokens: 50, ignore_eos: true }), { half: true, enough: 2 });
    assert.equal(asked.at(-1).status, 200, 'half closed after the request');
    const reset = net.connect(Number(new URL(server.url).port), '127.0.0.1');
    await new Promise((settle) => reset.once('connect', settle));
    reset.write(chat({ max_tokens: 200, ignore_eos: true, stream: true }));
    await sleep(30);
    reset.resetAndDestroy();
    const silent = net.connect(Number(new URL(server.url).port), '127.0.0.1');
    assert.equal((await fetch(`${server.url}/health`)).status, 200);
    silent.destroy();
    const idle = await server.idleMetrics();
    assert.equal(idle.get('vllm:num_requests_running'), 0);
  });

  it('pipelined requests are answered in order', async () => {
    const answers = await raw(server, Buffer.concat([chat({}), Buffer.from('GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n'), chat({ model: 'gpt-9' })]), { enough: 3 });
    assert.deepEqual(answers.map((answer) => answer.status), [200, 200, 404]);
  });

  it('absolute targets, HEAD, OPTIONS and request ids', async () => {
    const [absolute] = await raw(server, 'GET http://x/health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine\r\n\r\n');
    assert.equal(absolute.status, 200);
    assert.match(absolute.head, /x-request-id: mine/i);
    const [odd] = await raw(server, 'GET /health?a[b]={c}|%zz HTTP/1.1\r\nHost: localhost\r\n\r\n');
    assert.equal(odd.status, 200, 'a query means nothing, whatever is in it');
    const [strange] = await raw(server, 'GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: "quoted id"\r\n\r\n');
    assert.match(strange.head, /x-request-id: [0-9a-f]{32}/i);
    const head = await fetch(`${server.url}/v1/models`, { method: 'HEAD' });
    assert.ok(Number(head.headers.get('content-length')) > 20);
    const options = await fetch(`${server.url}/v1/models`, { method: 'OPTIONS' });
    assert.equal(options.status, 204);
    assert.equal(options.headers.get('content-length'), null);
  });
});

describe('keys, TLS and operators', { skip }, () => {
  let folder;
  before(() => { folder = mkdtempSync(join(tmpdir(), 'protean-http-')); });
  after(() => rmSync(folder, { recursive: true, force: true }));

  it('serves https with keys of a file, and shows no key in its log', async () => {
    const [cert, key, keys] = ['cert.pem', 'key.pem', 'keys'].map((name) => join(folder, name));
    const made = spawnSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '1', '-subj', '/CN=localhost', '-keyout', key, '-out', cert]);
    assert.equal(made.status, 0, String(made.stderr));
    writeFileSync(keys, '# people\nsecret-of-ann\n\nsecret-of-bob\n');
    const server = await Server.start('--ssl-certfile', cert, '--ssl-keyfile', key, '--api-key', 'secret-of-all', '--api-key-file', keys, '--log-level', 'debug');
    const ask = (headers, options = {}) => new Promise((settle, fail) => {
      https.get(`${server.url}/v1/models`, { headers, rejectUnauthorized: false, agent: false, ...options }, (response) => {
        const version = response.socket.getProtocol();
        response.resume().on('end', () => settle([response.statusCode, version]));
      }).on('error', fail);
    });
    for (const secret of ['secret-of-all', 'secret-of-ann', 'secret-of-bob']) {
      assert.equal((await ask({ authorization: `Bearer ${secret}` }))[0], 200);
      assert.equal((await ask({ 'x-api-key': secret }))[0], 200);
    }
    assert.equal((await ask({ authorization: 'Bearer secret-of-eve' }))[0], 401);
    assert.equal((await ask({}))[0], 401);
    assert.equal((await ask({ 'x-api-key': 'secret-of-ann' }, { maxVersion: 'TLSv1.2' }))[1], 'TLSv1.2');
    await assert.rejects(ask({}, { minVersion: 'TLSv1', maxVersion: 'TLSv1.1', ciphers: 'DEFAULT@SECLEVEL=0' }));
    const [plain] = await raw(server, 'GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n');
    assert.equal(plain.status, 400);
    assert.match(plain.body, /https:\/\//);
    server.process.kill('SIGHUP');
    await server.logged(/key again/);
    assert.equal((await ask({ 'x-api-key': 'secret-of-ann' }))[0], 200);
    assert.equal(await server.stop(), 0);
    assert.doesNotMatch(server.log, /secret-of/);
  });

  for (const [name, flags, words] of [
    ['a missing certificate', ['--ssl-certfile', '/none.pem', '--ssl-keyfile', '/none.pem'], /--ssl-certfile: '\/none\.pem' does not exist/],
    ['half of the pair', ['--ssl-certfile', program], /--ssl-keyfile is missing/],
    ['a missing key file', ['--api-key-file', '/none'], /--api-key-file: '\/none' does not exist/],
    ['an empty key', ['--api-key', ''], /key is empty/],
    ['an origin with a path', ['--allow-origin', 'https://a.example/x'], /--allow-origin/],
    ['an open admin port', ['--admin-port', '0', '--admin-host', '0.0.0.0'], /--admin-key/],
    ['a scaler that is no URL', ['--scaler-url', 'localhost:9000'], /--scaler-url .*localhost:9000.* give an address like http/],
    ['a collector behind https', ['--otlp-endpoint', 'https://a:4318'], /--otlp-endpoint/],
    ['a log level there is not', ['--log-level', 'loud'], /loud/],
    ['a body larger than all', ['--max-body-size', '2GiB'], /--max-inflight-body-bytes/],
    ['too little memory for grammars', ['--grammar-memory', '1MiB'], /--grammar-memory 1MiB must be a size of at least 16MiB/],
  ]) {
    it(`${name} is refused at the start`, () => {
      const { status, stderr } = spawnSync(program, ['serve', model, '--port', '0', ...flags], { encoding: 'utf8', timeout: 120_000 });
      assert.equal(status, 2, stderr);
      assert.match(stderr, words);
    });
  }

  it('warns of a public address without a key', async () => {
    const warning = /without an --api-key/;
    for (const [flags, warns] of [[['--host', '0.0.0.0'], true], [['--host', '0.0.0.0', '--api-key', 'k'], false], [[], false]]) {
      const server = await Server.start(...flags);
      assert.equal(await server.stop(), 0);
      assert.equal(warning.test(server.log), warns, server.log);
    }
  });

  it('answers operators on their own port, and drains for them', async () => {
    const server = await Server.start('--admin-port', '0', '--log-format', 'json');
    await server.logged(/operators' port: 127\.0\.0\.1:(\d+)/);
    const admin = `http://127.0.0.1:${server.log.match(/operators' port: 127\.0\.0\.1:(\d+)/)[1]}`;
    const form = await (await fetch(`${admin}/admin/form`)).json();
    assert.equal(form.model, modelName);
    assert.equal(form.form.stages[0].layer_count, 2);
    assert.equal((await fetch(`${server.url}/admin/form`)).status, 404);
    assert.equal((await fetch(`${admin}/admin/drain`, { method: 'POST', headers: { origin: 'http://evil.example' } })).status, 403);
    assert.equal((await fetch(`${admin}/admin/drain`, { method: 'POST' })).status, 202);
    assert.equal(await server.ended, 0);
    for (const line of server.log.trim().split('\n')) assert.ok(JSON.parse(line).message !== undefined, line);
  });
});

describe('what operators see', { skip }, () => {
  it('one log line per request, in JSON, without its text', async () => {
    const server = await Server.start('--log-format', 'json');
    const body = { prompt: 'Once upon a SECRETWORD', max_tokens: 5, ignore_eos: true };
    const ask = (more = {}) => fetch(`${server.url}/v1/completions`, { method: 'POST', body: JSON.stringify({ ...body, ...more }), headers: { 'x-request-id': 'r-1' } });
    await (await ask()).text();
    await (await ask({ model: 'other' })).text();
    assert.equal(await server.stop(), 0);
    assert.doesNotMatch(server.log, /SECRETWORD/);
    const lines = server.log.trim().split('\n').map((line) => JSON.parse(line)).filter((line) => line.message === 'request');
    assert.equal(lines.length, 2);
    assert.deepEqual({ ...lines[0], time: 0, prompt: 0, client: 0, ttft_ms: 0, duration_ms: 0 }, {
      time: 0, level: 'info', message: 'request', id: 'cmpl-r-1', model: modelName, path: '/v1/completions', client: 0, status: 200,
      prompt: 0, cached: 0, output: 5, preemptions: 0, finish: 'length', ttft_ms: 0, duration_ms: 0,
    });
    assert.ok(lines[0].ttft_ms > 0 && lines[0].duration_ms >= lines[0].ttft_ms);
    assert.match(lines[0].client, /^127\.0\.0\.1:\d+$/);
    assert.equal(lines[1].status, 404);
  });

  it('serves on while its log is not read', async () => {
    const server = await Server.start('--log-level', 'debug');
    server.process.stderr.pause();
    const agent = new http.Agent({ keepAlive: true });
    for (let i = 0; i < 1500; ++i) {  // more than a pipe holds
      await new Promise((settle, fail) => http.get(`${server.url}/health`, { agent }, (response) => response.resume().on('end', settle)).on('error', fail));
    }
    agent.destroy();
    assert.equal((await fetch(`${server.url}/health`)).status, 200);
    server.process.stderr.resume();
    assert.equal(await server.stop(), 0);
    assert.ok(server.log.split('\n').length > 1500);
  });

  it('sends a trace per request, which continues the client\'s, and lives without the collector', async () => {
    const got = [];
    const collector = http.createServer((request, response) => {
      let text = '';
      request.on('data', (data) => { text += data; }).on('end', () => {
        got.push({ path: request.url, type: request.headers['content-type'], ...JSON.parse(text) });
        response.end('{}');
      });
    });
    await new Promise((settle) => collector.listen(0, '127.0.0.1', settle));
    const port = collector.address().port;
    const server = await Server.start('--otlp-endpoint', `http://127.0.0.1:${port}`);
    const trace = '0af7651916cd43dd8448eb211c80319c';
    const began = Date.now();
    const ask = (headers) => fetch(`${server.url}/v1/completions`, { method: 'POST', headers, body: JSON.stringify({ prompt: 'Once', max_tokens: 4, ignore_eos: true }) });
    await (await ask({ traceparent: `00-${trace}-b7ad6b7169203331-01` })).text();
    await (await ask({ traceparent: `00-${trace}-b7ad6b7169203332-00` })).text();  // not sampled
    await until(() => got.length > 0);
    assert.equal(got[0].path, '/v1/traces');
    assert.equal(got[0].type, 'application/json');
    const spans = got[0].resourceSpans[0].scopeSpans[0].spans;
    assert.deepEqual(spans.map((span) => span.name), [`/v1/completions ${modelName}`, 'queue', 'prefill', 'decode']);
    assert.ok(spans.every((span) => span.traceId === trace && BigInt(span.endTimeUnixNano) >= BigInt(span.startTimeUnixNano)));
    assert.equal(spans[0].parentSpanId, 'b7ad6b7169203331');
    assert.ok(Math.abs(Number(BigInt(spans[0].startTimeUnixNano) / 1_000_000n) - began) < Date.now() - began + 2000);
    const attributes = new Map(spans[0].attributes.map(({ key, value }) => [key, Object.values(value)[0]]));
    assert.equal(attributes.get('gen_ai.usage.output_tokens'), '4');
    collector.closeAllConnections?.();
    await new Promise((settle) => collector.close(settle));
    for (let i = 0; i < 5; ++i) assert.equal((await ask({})).status, 200);
    assert.equal(await server.stop(), 0);
    assert.equal(got.length, 1);
  });

  it('tells a scaler how many replicas the load asks for, until it takes the number', async () => {
    const got = [];
    const scaler = http.createServer((request, response) => {
      let text = '';
      request.on('data', (data) => { text += data; }).on('end', () => {
        got.push({ method: request.method, path: request.url, type: request.headers['content-type'], ...JSON.parse(text) });
        response.statusCode = got.length === 1 ? 503 : 204;
        response.end();
      });
    });
    await new Promise((settle) => scaler.listen(0, '127.0.0.1', settle));
    const server = await Server.start('--scaler-url', `http://127.0.0.1:${scaler.address().port}/scale?key=1`, '--scaler-after', '0',
      '--kv-cache-memory', '256KiB', '--max-model-len', '256', '--max-num-seqs', '64', '--no-enable-prefix-caching');
    const ask = () => fetch(`${server.url}/v1/completions`, { method: 'POST', body: JSON.stringify({ prompt: 'Once', max_tokens: 200, ignore_eos: true }) });
    const began = Date.now() / 1000;
    const asked = await Promise.all(Array.from({ length: 64 }, async () => (await ask()).json()));
    assert.ok(asked.every((answer) => answer.usage.completion_tokens === 200));
    await until(() => got.at(-1)?.replicas_wanted === 1, () => JSON.stringify(got));
    assert.ok(got[0].replicas_wanted > 1, `the queue lacks KV: ${JSON.stringify(got)}`);
    assert.ok(got.length >= 2, 'what was answered 503 is sent again');
    const { at, ...last } = got.at(-1);
    assert.deepEqual(last, { method: 'POST', path: '/scale?key=1', type: 'application/json', model: modelName, replicas: 1, replicas_wanted: 1 });
    assert.ok(at > began - 2 && at < Date.now() / 1000 + 2, `${at} since ${began}`);
    assert.equal((await server.metrics()).get(`protean:replicas_wanted{model_name="${modelName}"}`), 1);
    assert.equal(await server.stop(), 0);
    await new Promise((settle) => scaler.close(settle));
  });

  it('has every metric of vLLM that others read, in strict exposition format', async () => {
    const server = await Server.start();
    await (await fetch(`${server.url}/v1/completions`, { method: 'POST', body: '{"prompt": "Once", "max_tokens": 3}' })).text();
    const text = await (await fetch(`${server.url}/metrics`)).text();
    const metrics = parseMetrics(text);
    const resident = metrics.get('process_resident_memory_bytes') / server.residentBytes();
    assert.equal(await server.stop(), 0);
    const vllm = ['num_requests_running', 'num_requests_waiting', 'kv_cache_usage_perc', 'gpu_cache_usage_perc', 'num_preemptions_total',
      'prefix_cache_queries_total', 'prefix_cache_hits_total', 'prompt_tokens_total', 'generation_tokens_total', 'request_success_total',
      'cache_config_info', 'lora_requests_info', 'engine_sleep_state', 'external_prefix_cache_queries_total', 'num_requests_swapped', 'cpu_cache_usage_perc',
      'iteration_tokens_total_bucket', ...['time_to_first_token', 'inter_token_latency', 'time_per_output_token', 'request_time_per_output_token', 'e2e_request_latency',
        'request_queue_time', 'request_inference_time', 'request_prefill_time', 'request_decode_time'].map((name) => `${name}_seconds_bucket`),
      ...['request_prompt_tokens', 'request_generation_tokens', 'request_max_num_generation_tokens', 'request_params_n', 'request_params_max_tokens'].map((name) => `${name}_bucket`)];
    for (const name of vllm) assert.ok(metrics.has(`vllm:${name}`), `vllm:${name} is missing`);
    for (const name of ['http_requests_total', 'protean:form_info', 'protean:build_info', 'protean:kv_blocks_total', 'process_open_fds', 'process_start_time_seconds']) {
      assert.ok(metrics.get(name) > 0, `${name} is missing or 0`);
    }
    assert.ok(Math.abs(resident - 1) < 0.5, `${resident} of what the system says`);
    checkFamilies(text);
  });
});

// What promtool checks: HELP and TYPE once before a family's samples, which stand together;
// histograms whose buckets grow and end at +Inf with the count.
function checkFamilies(text) {
  const types = new Map();
  const seen = new Set();
  let family = '';
  for (const line of text.trimEnd().split('\n')) {
    const type = line.match(/^# TYPE (\S+) (counter|gauge|histogram)$/);
    if (type) {
      assert.ok(!types.has(type[1]), `${type[1]} has two types`);
      types.set(type[1], type[2]);
      family = type[1];
    } else if (!line.startsWith('# HELP ')) {
      const name = line.match(/^[\w:]+/)[0];
      assert.ok(name === family || (types.get(family) === 'histogram' && /^_(bucket|sum|count)$/.test(name.slice(family.length))), `${line} stands in ${family}`);
      const series = line.slice(0, line.lastIndexOf(' '));
      assert.ok(!seen.has(series), `${series} stands twice`);
      seen.add(series);
    }
  }
  for (const [name, type] of types) if (type === 'counter') assert.match(name, /_total$/);
  for (const run of text.matchAll(/((?:^\S+_bucket\{.*\n)+)/gm)) {
    const counts = run[1].trim().split('\n').map((line) => Number(line.slice(line.lastIndexOf(' ') + 1)));
    assert.ok(counts.every((count, i) => i === 0 || count >= counts[i - 1]), run[1]);
    assert.match(run[1].trim().split('\n').pop(), /le="\+Inf"/);
  }
}

describe('the end', { skip }, () => {
  const ask = (server, tokens) => new Promise((settle, fail) => {
    const request = http.request(`${server.url}/v1/completions`, { method: 'POST', agent: false }, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (data) => { text += data; });
      response.on('end', () => settle([response.statusCode, text])).on('error', fail);
    });
    request.on('error', fail);
    request.end(JSON.stringify({ prompt: 'Once upon', max_tokens: tokens, ignore_eos: true, stream: true }));
  });

  it('SIGTERM under load loses no accepted request, and tells newcomers', async () => {
    // The built-in model takes seconds for these answers, so that the signal comes while some run and others wait.
    const server = await Server.startBuiltin('--max-num-seqs', '4', '--shutdown-timeout', '600');
    const accepted = Array.from({ length: 24 }, () => ask(server, instrumented ? 100 : 400));
    const counted = ['vllm:num_requests_running', 'vllm:num_requests_waiting', 'vllm:request_success_total'];
    await until(async () => {
      const all = await server.metrics();
      return counted.reduce((sum, name) => sum + (all.get(name) ?? 0), 0) >= 24;
    });
    server.process.kill('SIGTERM');
    let health;
    do health = await fetch(`${server.url}/health`); while (health.status === 200);
    assert.equal(health.status, 503);
    assert.equal(health.headers.get('connection'), 'close');
    const [status, text] = await ask(server, 1);
    assert.equal(status, 503, text);
    for (const [code, events] of await Promise.all(accepted)) {
      assert.equal(code, 200);
      assert.ok(events.endsWith('data: [DONE]\n\n') && !events.includes('"error"'), events.slice(-200));
    }
    assert.equal(await server.ended, 0);
  });

  // Two signals at once would be one: returns when the server has taken it.
  const terminate = async (server) => {
    server.process.kill('SIGTERM');
    const status = `/proc/${server.process.pid}/status`;
    await until(() => !existsSync(status) || ((BigInt(`0x${readFileSync(status, 'utf8').match(/^ShdPnd:\t(\w+)/m)[1]}`) >> 14n) & 1n) === 0n);
  };
  const failed = ([, events]) => events.includes('"error"') && events.includes('shutting down');
  const whole = ([, events]) => events.endsWith('data: [DONE]\n\n') && !events.includes('"error"');

  it('a second SIGTERM ends answers with an error', async () => {
    const server = await Server.startBuiltin('--max-num-seqs', '1', '--shutdown-timeout', '86400');
    const running = Array.from({ length: 8 }, () => ask(server, 450));
    await until(async () => (await server.metrics()).get('vllm:num_requests_waiting') > 0);
    await terminate(server);
    await terminate(server);
    assert.ok((await Promise.all(running)).some(failed));
    assert.equal(await server.ended, 0);
  });

  it('a SIGTERM goes on with the drain that an operator began, and a second one ends answers', async () => {
    const server = await Server.startBuiltin('--max-num-seqs', '1', '--shutdown-timeout', '86400', '--admin-port', '0');
    await server.logged(/operators' port: (\S+)/);
    let ended = 0;
    const running = Array.from({ length: 16 }, () => ask(server, 200).then((answer) => { ended += whole(answer); return answer; }));
    await until(async () => {
      const all = await server.metrics();
      return all.get('vllm:num_requests_running') + all.get('vllm:num_requests_waiting') + ended >= 16;
    });
    assert.equal((await fetch(`http://${server.log.match(/operators' port: (\S+)/)[1]}/admin/drain`, { method: 'POST' })).status, 202);
    await terminate(server);
    const before = ended;
    await until(() => ended > before);
    await terminate(server);
    const ends = await Promise.all(running);
    assert.ok(ends.some(failed));
    assert.ok(ends.every((answer) => whole(answer) || failed(answer)), JSON.stringify(ends));
    assert.equal(await server.ended, 0);
  });

  it('kill -9 leaves nothing to repair', async () => {
    for (let i = 0; i < 2; ++i) {
      const server = await Server.start();
      const cut = ask(server, 400).catch(() => 'cut');
      await sleep(30);
      server.process.kill('SIGKILL');
      await cut;
      assert.equal(await server.ended, 'SIGKILL');
    }
    const server = await Server.start();
    assert.equal((await ask(server, 2))[0], 200);
    assert.equal(await server.stop(), 0);
  });
});

describe('a thousand idle streams', { skip }, () => {
  it('cost little memory and no CPU', async () => {
    const server = await Server.start('--max-num-seqs', '1', '--max-num-queued-reqs', '2000', '--sse-ping-interval', '3600');
    const port = Number(new URL(server.url).port);
    // One long answer runs, the others wait behind it with their streams open.
    const sockets = [];
    const open = () => new Promise((settle, fail) => {
      const socket = net.connect(port, '127.0.0.1', () => socket.write(chat({ stream: true, max_tokens: 400, ignore_eos: true })));
      socket.once('data', () => settle()).once('error', fail);
      sockets.push(socket);
    });
    const before = server.residentBytes();
    await Promise.all(Array.from({ length: 1000 }, open));
    const grown = server.residentBytes() - before;
    console.log(`1,000 streams: ${(grown / 2 ** 20).toFixed(1)} MiB more, ${(server.residentBytes() / 2 ** 20).toFixed(1)} MiB in all`);
    assert.ok(grown < 100 * 2 ** 20 || process.env.LOAD_MEMORY === 'any', `${grown} bytes`);
    for (const socket of sockets) socket.destroy();
    await server.idleMetrics();
    const files = server.openFiles();
    const idle = await Promise.all(Array.from({ length: 1000 }, () => new Promise((settle) => { const socket = net.connect(port, '127.0.0.1', () => settle(socket)); })));
    await until(() => server.openFiles() >= 1000, () => `${server.openFiles()} files`);  // it has accepted them
    const cpu = server.cpuSeconds();
    await sleep(2000);
    const used = server.cpuSeconds() - cpu;
    console.log(`1,000 idle connections: ${used.toFixed(2)} s of CPU in 2 s, ${server.openFiles() - files} files`);
    assert.ok(used < 0.3 || process.env.LOAD_MEMORY === 'any', `${used} s of CPU`);
    for (const socket of idle) socket.destroy();
    await until(() => server.openFiles() <= files + 2, () => `${server.openFiles()} files, ${files} before`);
    assert.equal(await server.stop(), 0);
  });
});
