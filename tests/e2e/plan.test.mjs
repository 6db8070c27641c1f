// protean plan: the ranked configurations of a model for an intent, without serving.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { writeRandomModel } from './random_model.mjs';
import { instrumented, program } from './server.mjs';

let scratch;
before(() => { scratch = mkdtempSync(join(tmpdir(), 'protean-plan-')); });
after(() => rmSync(scratch, { recursive: true, force: true }));

const run = (...args) => spawnSync(program, ['plan', '--variant-cache', join(scratch, 'cache'), ...args],
  { encoding: 'utf8', input: '', maxBuffer: 64 << 20 });
function planned(...args) {
  const { status, stdout, stderr } = run('--json', ...args);
  assert.equal(status, 0, stderr);
  return JSON.parse(stdout);
}
function refused(...args) {
  const { status, stdout, stderr } = run(...args);
  assert.notEqual(status, 0);
  assert.equal(stdout, '');
  return stderr;
}
const paper = ['--like', 'llama-2-70b', '--devices', '8xA6000', '--space', 'iserve'];
function deviceFile(name, ...devices) {
  const path = join(scratch, name);
  writeFileSync(path, devices.map((device) => `[[device]]\n${device}\n`).join('\n'));
  return path;
}

describe('protean plan --space iserve', () => {
  it('lists the 180 configurations of Llama-2-70B on 8 devices', () => {
    const plan = planned(...paper);
    assert.equal(plan.configurations.length, 180);
    assert.equal(new Set(plan.configurations.map((one) => one.name)).size, 180);
    assert.equal(new Set(plan.configurations.map((one) => `${one.tensor}x${one.pipeline}`)).size, 15);
    assert.equal(plan.fingerprint_share.one_layer.toFixed(4), '0.0200');
    assert.equal(plan.fingerprint_share.two_layers.toFixed(4), '0.0324');
    const { maps, left_out: none } = JSON.parse(run('--like', 'llama-2-70b', '--kept').stdout);
    assert.deepEqual([maps.length, maps[0].batch, none], [1, 1, 0]);
    for (const kept of maps[0].configurations) {
      const { name, ...estimate } = plan.configurations.find((one) => one.name === kept.name);
      for (const field of ['ttft_ms', 'tpot_ms', 'memory_bytes', 'device_memory_bytes', 'rests_on']) assert.equal(kept[field], estimate[field], `${field} of ${name}`);
    }
    assert.equal(maps[0].configurations.length, 180);
  });

  for (const [intent, value] of [['min-latency', 'latency_ms'], ['min-cost', 'cost'],
    ['min-memory', 'memory_bytes'], ['min-device-hours', 'device_seconds']].slice(instrumented ? 3 : 0)) {
    it(`chooses the least ${value} for ${intent}`, () => {
      const plan = planned(...paper, '--intent', intent);
      const fitting = plan.configurations.filter((one) => one.fits);
      assert.equal(plan.choice[value], Math.min(...fitting.map((one) => one[value])));
      assert.ok(fitting.length < 180, 'bf16 does not fit one device');
    });
  }

  it('takes the cheapest that keeps a latency SLO, and the fastest within a cost SLO', () => {
    const all = planned(...paper, '--intent', 'min-latency').configurations;
    const slo = all.map((one) => one.latency_ms).sort((a, b) => a - b)[60];
    const cheapest = planned(...paper, '--intent', `latency-slo=${slo}ms`);
    const kept = all.filter((one) => one.fits && one.latency_ms <= slo);
    assert.equal(cheapest.choice.cost, Math.min(...kept.map((one) => one.cost)));
    assert.ok(cheapest.configurations.some((one) => one.rank === null), 'slower ones have no rank');
    const bound = all.map((one) => one.cost).sort((a, b) => a - b)[60];
    const fastest = planned(...paper, '--intent', `cost-slo=${bound}`);
    assert.equal(fastest.choice.latency_ms,
      Math.min(...all.filter((one) => one.fits && one.cost <= bound).map((one) => one.latency_ms)));
  });

  it('counts cost by the formula and the price', () => {
    const [one] = planned(...paper, '--cost', 'device-time', '--price', '3').configurations;
    assert.ok(Math.abs(one.cost - 3 * one.device_seconds / 3600) < 1e-9 * one.cost);
  });
});

describe('protean plan with a file of devices', () => {
  it('gives the roomy device more layers where memory is uneven', () => {
    const file = deviceFile('uneven.toml', 'profile = "A6000"\nfree = "6.6GiB"', 'profile = "A6000"\nfree = "2.5GiB"');
    const plan = planned('--like', 'llama-2-7b', '--devices', file, '--weights', 'bf16', '--intent', 'min-latency');
    const [first, second] = plan.choice.stages;
    assert.equal(plan.choice.pipeline, 2);
    assert.equal(first.layers + second.layers, 32);
    assert.deepEqual(first.devices, [0]);
    assert.ok(first.layers > second.layers && second.layers > 0);
    assert.ok(first.device_memory_bytes <= 6.6 * 2 ** 30 && second.device_memory_bytes <= 2.5 * 2 ** 30);
    assert.equal(plan.choice.device_memory_bytes, first.device_memory_bytes, 'of the device with most');
    const even = plan.configurations.find(({ name }) => name === plan.choice.name);
    assert.ok(even.device_memory_bytes < first.device_memory_bytes, 'a row is for even stages');
    assert.equal(plan.choice.memory_bytes, first.device_memory_bytes + second.device_memory_bytes);
    const { stdout } = run('--like', 'llama-2-7b', '--devices', file, '--weights', 'bf16', '--intent', 'min-latency');
    const shown = stdout.split('\n').find((line) => line.endsWith('chosen')).split(/ {2,}/);
    assert.ok(shown.includes((first.device_memory_bytes / 2 ** 30).toFixed(2)), stdout);
  });

  it('places by load: packing takes the busiest device with room, least-loaded the idlest', () => {
    const file = deviceFile('loaded.toml', 'profile = "A100"\nload = 0.2', 'profile = "A100"\nload = 0.4',
      'profile = "A100"\nload = 0.9', 'profile = "A100"\nfree = "1GiB"\nload = 0.3');
    const on = (...more) => planned('--like', 'llama-2-7b', '--devices', file, '--intent', 'min-memory', ...more)
      .choice.stages[0].devices;
    assert.deepEqual(on('--placement', 'packing'), [2]);
    assert.deepEqual(on('--placement', 'least-loaded'), [0]);
    assert.deepEqual(on('--placement', 'hybrid', '--theta', '0.5'), [1]);
  });

  it('names what is wrong with it', () => {
    const like = ['--like', 'llama-2-7b', '--devices'];
    assert.match(refused(...like, deviceFile('a.toml', 'profile = "B7"')), /a\.toml: device B7 has no built-in profile: use one of A100/);
    assert.match(refused(...like, deviceFile('b.toml', 'profile = "A40"\nfree = 3')), /device 0: free must be a size/);
    assert.match(refused(...like, deviceFile('c.toml', 'profile = "A40"\nlaod = 1')), /device 0: "laod" is unknown/);
    assert.match(refused(...like, '8xB7'), /--devices 8xB7: device B7 has no built-in profile/);
    assert.match(refused(...like, deviceFile('d.toml', 'profile = "A40"\nprice = inf')), /device 0: price must be from 0 to 1e9/);
    assert.match(refused(...like, join(scratch, 'none.toml')), /none\.toml: there is no such file: name a TOML file/);
    for (const many of ['1025xA100', '0xA100', '1025', '0']) {
      assert.match(refused(...like, many), new RegExp(`--devices ${many}: ${parseInt(many, 10)} is no number of devices: use 1 to 1024`));
    }
    assert.match(refused(...like, '2'), /--like llama-2-7b has no weights to run here/);
  });
});

describe('protean plan for as many devices as it takes', () => {
  it('answers for 1,024 devices, with and without room', () => {
    const plan = planned('--like', 'Llama-2-70B', '--devices', '1024xA100', '--space', 'iserve');
    assert.equal(plan.model, 'llama-2-70b');
    assert.ok(plan.configurations.some((one) => one.devices === 640));
    const small = deviceFile('no_room.toml', 'profile = "A6000"\nfree = "1MiB"\ncount = 1024');
    assert.match(refused('--like', 'llama-2-70b', '--devices', small, '--space', 'iserve'), /fits the free memory/);
  });
});

describe('protean plan says what cannot be', () => {
  it('names the nearest miss of a budget', () => {
    assert.match(refused(...paper, '--intent', 'latency-slo=1ms'),
      /no configuration keeps latency-slo=1ms: the nearest, TP 4 x PP 1, .*, takes \d+\.\d ms: give as much\n/);
  });

  it('names the configuration that needs least memory more', () => {
    const file = deviceFile('small.toml', 'profile = "A40"\nfree = "3GiB"\ncount = 2');
    assert.match(refused('--like', 'llama-2-70b', '--devices', file),
      /fits the free memory: the nearest, .*w4.*, needs \d+\.\d+ GiB more on each of the 2 devices with most/);
  });

  it('explains unknown intents', () => {
    assert.match(refused(...paper, '--intent', 'min-latancy'), /intent min-latancy is unknown, did you mean min-latency\?/);
    assert.match(refused(...paper, '--intent', 'latency-slo=5'), /a time above 0 in ms or s/);
  });
});

describe('protean plan MODEL', () => {
  it('estimates from a fingerprint of this machine and shows why', () => {
    const model = writeRandomModel(join(scratch, 'model'), 4);
    const { status, stdout, stderr } = run(model, '--devices', '2', '--weights', 'bf16,w8', '--intent', 'min-memory',
      '--prompt-tokens', '64', '--output-tokens', '16');
    assert.equal(status, 0, stderr);
    assert.match(stdout, /chosen: TP 1 x PP 1, w8 structured 25%, KV int8, the first of \d+ configurations/);
    assert.match(stdout, /layers 0 to 3 on device 0: /);
    assert.match(stdout, /estimates rest on: a fingerprint on this machine/);
    const again = planned(model, '--devices', '2', '--weights', 'bf16,w8', '--prompt-tokens', '64', '--output-tokens', '16');
    assert.ok(again.configurations.every((one) => one.tpot_ms > 0 && one.ttft_ms > 0));
    const shared = again.configurations.filter((one) => one.tensor === 2);
    assert.ok(shared.length > 0 && shared.every((one) => !one.rests_on.includes('not measured')), 'sums among devices are measured too');
  });
});

describe('protean plan after protean eval --against', () => {
  it('shows how much the perplexity rises where it was measured', () => {
    const model = join(scratch, 'measured');
    writeRandomModel(model);
    const copy = join(scratch, 'measured-w8');
    const text = join(scratch, 'text.txt');
    writeFileSync(text, 'The house is old and the garden is small. '.repeat(20));
    const command = (...args) => {
      const { status, stderr } = spawnSync(program, args, { encoding: 'utf8', input: '' });
      assert.equal(status, 0, stderr);
    };
    const evaluate = (...args) => {
      const { status, stdout, stderr } = spawnSync(program, ['eval', ...args, '--text', text, '--json', '--variant-cache', join(scratch, 'cache')],
        { encoding: 'utf8', input: '' });
      assert.equal(status, 0, stderr);
      return Math.exp(JSON.parse(stdout).log_perplexity_ratio);
    };
    const ratios = () => {
      const rows = planned(model, '--devices', '2', '--weights', 'bf16,w4').configurations.filter((one) => one.perplexity_ratio !== null);
      return Object.fromEntries(rows.map((one) => [`${one.weights} ${one.method} ${one.pruning} ${one.kv}`, one.perplexity_ratio]));
    };
    assert.deepEqual(ratios(), {});
    const measured = { 'w4 rtn none bf16': evaluate(model, '--dtype', 'w4', '--kv-cache-dtype', 'bf16', '--against', 'bf16') };
    assert.deepEqual(ratios(), measured);
    command('prune', model, '--method', 'structured', '--percent', '25', '--calibrate', text, '-o', copy);
    measured['bf16 rtn structured 25% int8'] = evaluate(copy, '--dtype', 'bf16', '--kv-cache-dtype', 'int8', '--against', model);
    assert.deepEqual(ratios(), measured);
  });
});
