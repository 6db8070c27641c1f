// Runs the experiment of bench/elastic as short as it can be. Tests what it prints and writes, not what it
// measures.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { writeRandomModel } from './random_model.mjs';
import { builtin, data, program, root } from './server.mjs';

const traces = resolve(data, 'traces/azure2023');
const skip = !existsSync(traces) ? `needs ${traces}; set PROTEAN_DATA to the test data folder`
  : process.env.LOAD_MEMORY === 'any' ? 'takes many minutes with an instrumented server' : false;

describe('bench/elastic/run', { skip }, () => {
  let out;
  before(() => { out = mkdtempSync(join(tmpdir(), 'protean-elastic-')); });
  after(() => rmSync(out, { recursive: true, force: true }));
  const run = (...args) => spawnSync(resolve(root, 'bench/elastic/run'), ['--protean', program, '--model', builtin,
    '--data', data, ...args], { encoding: 'utf8', timeout: 600_000, env: { ...process.env, XDG_CACHE_HOME: join(out, 'cache') } });

  it('runs each system on a window of a trace and compares them', () => {
    const { status, stdout, stderr } = run('--traces', 'code', '--windows', '1', '--seconds', '4', '--saturated-s', '1', '--turns', '1', '--loads', '0.5',
      '--length-scale', '0.1', '--systems', 'bf16,w4,balanced', '--out', out);
    assert.equal(status, 0, stderr);
    const systems = JSON.parse(stdout).code['0.5'];
    assert.deepEqual(Object.keys(systems), ['bf16', 'w4', 'balanced']);
    for (const [name, found] of Object.entries(systems)) {
      for (const number of ['p95_ttft_s', 'late', 'tokens_per_s', 'full_precision_share', 'kl']) assert.ok(Number.isFinite(found[number]), `${name}, ${number}: ${stdout}`);
      assert.equal('changes_per_minute' in found, name === 'balanced');
    }
    assert.ok(systems.w4.kl > 0 && systems.w4.full_precision_share === 0 && systems.bf16.full_precision_share === 1, stdout);
    assert.deepEqual(JSON.parse(readFileSync(join(out, 'results.json'), 'utf8')), JSON.parse(stdout));
    const results = readFileSync(join(out, 'results.md'), 'utf8');
    for (const system of ['bf16', 'w4', 'balanced']) {
      assert.match(results, new RegExp(`^\\| ${system} \\|`, 'm'));
    }
    assert.deepEqual(readdirSync(out).filter((name) => name.endsWith('.svg')).sort(), ['form', 'kv'].map((name) => `elastic-code-0.5-${name}.svg`));
  });

  it('refuses invalid options', () => {
    for (const [flag, value, why] of [['--turns', '0', /--turns and --windows must be at least 1/],
      ['--traces', 'code,chat', /--traces: unknown chat; choose from conversation, code, burstgpt/],
      ['--loads', '1,x', /--loads/], ['--seconds', '0', /--seconds/], ['--systems', 'main,paper@3', /--systems: @3 is not one of --loads/]]) {
      const { status, stderr } = run(flag, value);
      assert.equal(status, 2, stderr);
      assert.match(stderr, why);
    }
    const { status, stderr } = run('--systems', 'bf16,17layers');
    assert.equal(status, 1, stderr);
    assert.match(stderr, /--systems: unknown 17layers; choose from bf16, .* for N of the 16 layers at w4/);
  });
});

describe('bench/elastic/reserve', { skip: process.env.LOAD_MEMORY === 'any' && 'takes a minute with an instrumented server' }, () => {
  it('compares the KV blocks of a static server with those of one that morphs, and measures starts and swaps', () => {
    const scratch = mkdtempSync(join(tmpdir(), 'protean-reserve-test-'));
    try {
      const { status, stdout, stderr } = spawnSync(resolve(root, 'bench/elastic/reserve'), ['--protean', program, '--model',
        writeRandomModel(join(scratch, 'model')), '--memory', '24MiB', '--tokens', '1', '--repeats', '1'], { encoding: 'utf8', timeout: 600_000 });
      assert.equal(status, 0, stderr);
      const found = JSON.parse(stdout);
      assert.ok(found.kv_share >= 0.95, stdout);
      assert.equal(found.first_start.kv_blocks, found.second_start.kv_blocks);
      for (const start of [found.static, found.first_start, found.second_start]) assert.ok(start.first_token_s >= start.listening_s && start.first_token_s > 0, stdout);
      assert.ok(found.second_start.swap_of_all_layers.up_s > 0);
    } finally {
      rmSync(scratch, { recursive: true });
    }
  });
});
