// `protean bench engine` and `bench kernels`: their tables are complete and add up, whatever this
// machine's speed; errors are one line.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { writeRandomModel } from './random_model.mjs';
import { program } from './server.mjs';

let scratch;
let model;
before(() => {
  scratch = mkdtempSync(join(tmpdir(), 'protean-bench-engine-'));
  model = writeRandomModel(join(scratch, 'model'));
});
after(() => rmSync(scratch, { recursive: true, force: true }));

const benchWith = (env, ...args) => spawnSync(program, ['bench', 'engine', model, '--variant-cache', join(scratch, 'cache'),
  '--memory', '16', '--threads', '1', '--repeat', '2', ...args], { encoding: 'utf8', input: '', env: { ...process.env, ...env } });
const bench = (...args) => benchWith({}, ...args);
const near = (a, b, what, rounding = 0) =>
  assert.ok(Math.abs(a - b) <= 1e-6 * Math.abs(b) + rounding, `${what}: ${a} is not ${b}`);

// A program that answers like llama-bench and records its arguments.
function fakePeer(name, answer) {
  const path = join(scratch, name);
  writeFileSync(path, `#!/bin/sh\necho "$@" >> ${path}.asked\n${answer}\n`);
  chmodSync(path, 0o755);
  return path;
}
const gguf = () => {
  const path = join(scratch, 'peer.gguf');
  writeFileSync(path, 'GGUF');
  return path;
};

describe('protean bench kernels', () => {
  it('has a row for every kernel, with what it reads and multiplies', () => {
    const { status, stdout, stderr } = spawnSync(program, ['bench', 'kernels', '--json', '--like', '1b', '--dtype', 'bf16', 'w4a8',
      '--rows', '1', '16', '--context', '256', '--memory', '80', '--threads', '1', '--repeat', '1'], { encoding: 'utf8' });
    assert.equal(status, 0, stderr);
    const table = JSON.parse(stdout);
    assert.equal(table.format, 'protean-kernels/2');
    const tiles = ['int8_ops_per_s', 'tile_flops_per_s', 'tile_int8_ops_per_s'];
    assert.ok(tiles.every((ceiling) => table.unit === 'AMX bf16' ? table[ceiling] > 0 : table[ceiling] === 0), stdout);
    const count = (kernel) => table.kernels.filter((row) => row.kernel === kernel).length;
    for (const matrix of ['query', 'key', 'up', 'down']) assert.equal(count(`matmul ${matrix}`), 4, matrix);
    assert.deepEqual([count('decode attention'), count('prefill attention')], [4, 2]);
    for (const kernel of ['norm', 'SwiGLU', 'rope']) assert.equal(count(kernel), 1, kernel);
    const prefill = table.kernels.find(({ kernel, dtype }) => kernel === 'prefill attention' && dtype === 'bf16');
    assert.equal(prefill.bytes, 256 * 8 * 64 * 2 * 2);
    assert.equal(prefill.operations, (256 * 257 / 2) * 32 * 64 * 4);
    for (const row of table.kernels) {
      assert.ok(row.time_us > 0 && row.bytes > 0, JSON.stringify(row));
      near(row.read_fraction, row.bytes / (row.time_us * 1e-6) / table.read_bytes_per_s, row.kernel, 1e-4);
    }
  });

  it('says how much memory it wants', () => {
    const { status, stderr } = spawnSync(program, ['bench', 'kernels', '--kernels', 'attention', '--memory', '16', '--context', '65536'],
      { encoding: 'utf8' });
    assert.equal(status, 2);
    assert.match(stderr, /--memory 16: two layers of KV of .*iB must fit/);
  });
});

describe('protean bench engine', () => {
  it('uses no better instructions than PROTEAN_CPU allows', () => {
    for (const cpu of ['avx2', 'portable']) {
      const { status, stdout, stderr } = benchWith({ PROTEAN_CPU: cpu }, '--json', '--prefill', '32', '--precisions', 'bf16');
      assert.equal(status, 0, stderr);
      assert.equal(JSON.parse(stdout).unit, 'vector f32');
    }
    const { status, stderr } = benchWith({ PROTEAN_CPU: 'abacus' }, '--json');
    assert.equal(status, 2);
    assert.match(stderr, /PROTEAN_CPU=abacus is invalid: use amx, avx512, avx2 or portable/);
  });

  it('has a row for every phase, batch and precision, whose numbers agree', () => {
    const { status, stdout, stderr } = bench('--json', '--prefill', '32,64', '--batches', '1,4', '--context', '20',
      '--precisions', 'bf16,w8,w4,w3');
    assert.equal(status, 0, stderr);
    const table = JSON.parse(stdout);
    assert.equal(table.format, 'protean-engine/1');
    assert.equal(table.threads, 1);
    assert.ok(table.read_bytes_per_s > 0 && table.flops_per_s > 0);
    assert.deepEqual(table.rows.map(({ phase, batch, precision }) => `${phase} ${batch} ${precision}`),
      ['bf16', 'w8', 'w4', 'w3'].flatMap((precision) =>
        ['prefill 32', 'prefill 64', 'decode 1', 'decode 4'].map((what) => `${what} ${precision}`)));
    for (const row of table.rows) {
      const what = `${row.phase} ${row.batch} ${row.precision}`;
      near(row.tokens_per_s, row.batch / (row.step_ms / 1e3), what);
      const limit = Math.max((row.weight_bytes + row.kv_bytes) / table.read_bytes_per_s, row.operations / table.flops_per_s);
      near(row.ceiling_fraction, row.tokens_per_s / (row.batch / limit), what);
      assert.equal(row.context, row.phase === 'decode' ? 20 : 0);
      assert.ok(row.spread >= 0);
    }
    const of = (phase, batch, precision) =>
      table.rows.find((row) => row.phase === phase && row.batch === batch && row.precision === precision);
    // Sizes of writeRandomModel: 2 layers of 36,864 weights, a table of 4096 x 64, 2 KV heads of 16.
    assert.equal(of('decode', 1, 'bf16').operations, 2 * 2 * 36864 + 2 * 4096 * 64 + 4 * 4 * 16 * 2 * 21);
    assert.equal(of('decode', 4, 'bf16').kv_bytes, 4 * 21 * 2 * 2 * 2 * 16 * 2);
    assert.equal(of('decode', 4, 'w4').operations, 4 * of('decode', 1, 'bf16').operations);
    const bytes = ['bf16', 'w8', 'w4', 'w3'].map((precision) => of('decode', 1, precision).weight_bytes);
    assert.deepEqual([...bytes].sort((a, b) => b - a), bytes);
    assert.equal(new Set(bytes).size, 4);
  });

  it('keeps what it packed, so that the next run need not', () => {
    const [folder] = readdirSync(join(scratch, 'cache'));
    const kept = readdirSync(join(scratch, 'cache', folder));
    for (const precision of ['w8', 'w4', 'w3']) {
      assert.ok(kept.some((name) => name.includes(precision)), `${precision} in ${kept}`);
    }
    assert.ok(!kept.some((name) => name.includes('bf16')), `${kept}`);
  });

  it('prints a table for people and shortens prompts to what the model reads', () => {
    const { status, stdout, stderr } = bench('--prefill', '2048,4096', '--batches', '2', '--context', '8', '--precisions', 'w4');
    assert.equal(status, 0, stderr);
    assert.match(stderr, /reads 2048 tokens: a prompt of 4096/);
    assert.equal(stdout.match(/^prefill +2048 w4 .*%? *(read|mult)$/gm).length, 1);
    assert.match(stdout, /^decode +2 w4 +8 /m);
  });

  it('asks a peer for the same sizes in turns and reports ratios', () => {
    const peer = fakePeer('llama-bench', `echo '[{"model_type":"toy Q4_0","avg_ts":100.0}]'`);
    const { status, stdout, stderr } = bench('--json', '--prefill', '32', '--batches', '1,4', '--context', '16',
      '--precisions', 'bf16,w4', '--llama-bench', peer, '--gguf', gguf());
    assert.equal(status, 0, stderr);
    const { rows } = JSON.parse(stdout);
    for (const row of rows) {
      if (row.batch === 4) {
        assert.equal(row.peer, undefined); // it has no such run
        continue;
      }
      assert.equal(row.peer.model, 'toy Q4_0');
      near(row.peer.tokens_per_s, 100, 'peer');
      near(row.peer.ratio, row.tokens_per_s / 100, 'ratio');
    }
    const asked = readFileSync(`${peer}.asked`, 'utf8').trim().split('\n');
    assert.equal(asked.length, 2 * 2); // turns x tests
    assert.match(asked[0], /-t 1 .*-o json -p 32 -n 0$/);
    assert.match(asked[1], /-p 0 -n \d+ -d 16$/);
  });

  it('says what it cannot do', () => {
    const refuses = (pattern, ...args) => {
      const { status, stderr } = bench(...args);
      assert.equal(status === 0, false);
      assert.match(stderr, pattern);
    };
    refuses(/--precisions: 'w5' is none of bf16, s24, w8, w8a8, w8a7, w4, w4a8, w3/, '--precisions', 'w5');
    refuses(/--context 4000 leaves no room to decode: this model reads 2048/, '--context', '4000');
    refuses(/--gguf: '.*none\.gguf' does not exist/, '--llama-bench', 'x', '--gguf', join(scratch, 'none.gguf'));
    refuses(/cannot be run: No such file/, '--prefill', '8', '--batches', '1', '--precisions', 'bf16',
      '--llama-bench', join(scratch, 'none'), '--gguf', gguf());
    refuses(/printed no list of one test/, '--prefill', '8', '--batches', '1', '--precisions', 'bf16',
      '--llama-bench', fakePeer('chatty', 'echo hello'), '--gguf', gguf());
    refuses(/it failed on/, '--prefill', '8', '--batches', '1', '--precisions', 'bf16',
      '--llama-bench', fakePeer('failing', 'exit 3'), '--gguf', gguf());
  });
});
