// The cost model of a model's steps: it is measured, saved with the machine that it holds for, and read
// back, but only for this model on this machine. A server that finds none makes a fingerprint.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { writeRandomModel } from './random_model.mjs';
import { program, Server } from './server.mjs';

let scratch;
let model;
before(() => {
  scratch = mkdtempSync(join(tmpdir(), 'protean-profile-steps-'));
  model = writeRandomModel(join(scratch, 'model'));
});
after(() => rmSync(scratch, { recursive: true, force: true }));

const profileWith = (threads, ...args) => spawnSync(program, ['profile', model, '--variant-cache', join(scratch, 'cache'),
  '--threads', `${threads}`, '--cpu-time', ...args], { encoding: 'utf8', input: '' });
const profile = (...args) => profileWith(1, ...args);
const database = () => join(scratch, 'cache', 'profiles.sqlite');
// Runs a statement on the database. Returns rows as arrays.
const sql = (statement) => {
  const { status, stdout, stderr } = spawnSync('python3', ['-c', `import json, sqlite3, sys
database = sqlite3.connect(sys.argv[1])
print(json.dumps(database.execute(sys.argv[2]).fetchall()))
database.commit()`, database(), statement], { encoding: 'utf8' });
  assert.equal(status, 0, stderr);
  return JSON.parse(stdout);
};

function predicted(cost, { tokens, sequences, logits, context, kv }, layers) {
  const { step_us, token_us, more_token_us, tile_us, bend_tokens, tile_tokens, pass_tokens } = cost.layers[layers];
  const passes = pass_tokens > 0 ? Math.ceil(tokens / pass_tokens) : 1;
  const first = Math.min(tokens, bend_tokens);
  const head = cost.logits[layers === 'bf16' ? 'bf16' : 'w8'];
  return step_us * passes + token_us * first + more_token_us * (tokens - first) + tile_us * Math.ceil(tokens / tile_tokens) +
    cost.step.sequence_us * sequences + (logits > 0 ? head.step_us + head.row_us * logits : 0) +
    cost.step.context_token_us * context + cost.step.kv_token_us * kv +
    cost.step.far_kv_token_us * Math.max(0, kv - cost.step.near_kv_tokens);
}

describe('protean profile --steps', () => {
  it('fits a model to timed steps, checks it on others and keeps it', () => {
    const { status, stdout, stderr } = profile('--steps', '--json', '--longest-step', '128', '--step-repeat', '2',
      '--step-precisions', 'bf16,w4');
    assert.equal(status, 0, stderr);
    const { steps } = JSON.parse(stdout);
    assert.equal(steps.threads, 1);
    assert.equal(steps.time, 'processor');
    assert.ok(steps.cpu.length > 0);
    assert.deepEqual(Object.keys(steps.layers).sort(), ['bf16', 'w4']);
    assert.deepEqual(Object.keys(steps.logits).sort(), ['bf16', 'w8']);
    for (const value of [...Object.values(steps.step),
      ...[steps.layers, steps.logits].flatMap(Object.values).flatMap(Object.values)]) {
      assert.ok(value >= 0, `${value}`);
    }
    // 13 shapes at two precisions and at a mixture, which no fitted step had.
    assert.equal(steps.held_out.length, 3 * 13);
    assert.equal(steps.held_out.filter(({ layers }) => layers.includes('+')).length, 13);
    for (const { measured_us, predicted_us } of steps.held_out) assert.ok(measured_us > 0 && predicted_us > 0);
    const errors = steps.held_out.filter(({ step }) => step !== 'decode 3' && !/^[0-7] /.test(step))
      .map(({ measured_us, predicted_us }) => Math.abs(predicted_us / measured_us - 1));
    assert.equal(steps.held_out_steps, errors.length);
    assert.ok(Math.abs(steps.worst_error - Math.max(...errors)) < 1e-9);
    const { without_prefix: alone, with_prefix: after } = steps.microbatches;
    assert.deepEqual([alone.steps, after.steps], [2 * 4, 2 * 1], 'prompts of 8 tokens or more at two precisions');
    for (const { mean_error, mean_error_by_tokens } of [alone, after]) assert.ok(mean_error >= 0 && mean_error_by_tokens > 0);
    // A held-out step, predicted by hand from what was printed: 10 sequences after 32 tokens each, each read as a tile of 64.
    const ten = steps.held_out.find(({ step, layers }) => step === 'decode 10' && layers.startsWith('w4') && !layers.includes('+'));
    const by_hand = predicted(steps, { tokens: 10, sequences: 10, logits: 10, context: 330, kv: 640 }, 'w4');
    assert.ok(Math.abs(ten.predicted_us / by_hand - 1) < 1e-9, `${ten.predicted_us} is not ${by_hand}`);

    const [[kept]] = sql('SELECT cost FROM step_cost');
    const { layers, step } = JSON.parse(kept);
    assert.deepEqual(layers, steps.layers);
    assert.deepEqual(step, steps.step);
  });

  it('shows what it kept', () => {
    const { status, stdout, stderr } = profile('--show-steps', '--json');
    assert.equal(status, 0, stderr);
    // Numbers are read back to the last bit but one.
    const nearly = (key, value) => (typeof value === 'number' ? Number(value.toPrecision(12)) : value);
    const { steps } = JSON.parse(stdout, nearly);
    const [[cost, identity, threads]] = sql('SELECT cost, model, threads FROM step_cost');
    assert.match(identity, /^[0-9a-f]{32}$/);
    assert.equal(threads, 1);
    assert.deepEqual(steps, JSON.parse(cost, nearly));
    assert.match(profile('--show-steps').stdout, /held-out steps of 8 tokens or more: mean error/);
  });

  it('makes a fingerprint of few layers, which knows the same terms', () => {
    const { status, stdout, stderr } = profile('--fingerprint', '--json', '--step-precisions', 'bf16,w4');
    assert.equal(status, 0, stderr);
    const { fingerprint } = JSON.parse(stdout);
    assert.deepEqual(fingerprint.models.map(({ precision }) => precision), ['bf16', 'w4']);
    for (const { ttft_ms, tpot_ms, weight_bytes } of fingerprint.models) assert.ok(ttft_ms > 0 && tpot_ms > 0 && weight_bytes > 0);
    assert.ok(fingerprint.steps.length > 20);
    const [[cost]] = sql("SELECT cost FROM step_cost WHERE origin = 'fingerprint'");
    assert.deepEqual(Object.keys(JSON.parse(cost).layers).sort(), ['bf16', 'w4']);
    assert.equal(JSON.parse(cost).origin, 'fingerprint');
    assert.match(profile('--show-steps').stdout, /learned from a fingerprint/, 'wall time before processor time');
  });

  it('is made once by a server, which then knows it', async () => {
    const flags = ['--threads', '1', '--variant-cache', join(scratch, 'served')];
    for (const log of [/fingerprint made in .* s: bf16: .* ms a token/, /costs of steps are known from an earlier fingerprint/]) {
      const server = await Server.startWith({ path: model }, ...flags);
      await server.logged(log);
      await server.stop();
    }
    const other = await Server.startWith({ path: model }, ...flags, '--dtype', 'w8');
    await other.logged(/fingerprint made/);  // another precision is not known yet
    await other.stop();
  });

  it('does not take costs of another model, CPU, version or number of threads', () => {
    const [[model, cpu, version]] = sql('SELECT model, cpu, version FROM step_cost');
    const shows = () => profile('--show-steps').status;
    for (const [column, own] of Object.entries({ model, cpu, version })) {
      sql(`UPDATE step_cost SET ${column} = 'other'`);
      assert.equal(shows(), 2, column);
      sql(`UPDATE step_cost SET ${column} = '${own}'`);
      assert.equal(shows(), 0, column);
    }
    assert.match(profileWith(3, '--show-steps').stderr, /3 threads on .* were never measured: run `protean profile --steps`/);
  });

  it('passes over rows that hold no cost, and refuses a damaged file', () => {
    const passesOver = (edit) => {
      const rows = sql('SELECT origin, cost FROM step_cost');
      for (const [origin, text] of rows) {
        const object = JSON.parse(text);
        edit(object);
        sql(`UPDATE step_cost SET cost = '${JSON.stringify(object).replaceAll("'", "''")}' WHERE origin = '${origin}'`);
      }
      assert.match(profile('--show-steps').stderr, /were never measured/, `${edit}`);
      for (const [origin, text] of rows) sql(`UPDATE step_cost SET cost = '${text.replaceAll("'", "''")}' WHERE origin = '${origin}'`);
    };
    passesOver((cost) => { cost.step.sequence_us = -1; });
    passesOver((cost) => { delete cost.layers.w4.bend_tokens; });
    passesOver((cost) => { cost.layers = {}; });
    passesOver((cost) => { delete cost.logits; });
    passesOver((cost) => { cost.layers = { w5: cost.layers.w4 }; });
    passesOver((cost) => { cost.layers.w4.token_us = 'much'; });
    const bytes = readFileSync(database());
    writeFileSync(database(), 'this is no database, and long enough to be read as one'.repeat(20));
    assert.match(profile('--show-steps').stderr, /profiles\.sqlite cannot be read: .*: delete it and measure again/);
    writeFileSync(database(), bytes);
    assert.equal(profile('--show-steps').status, 0);
  });

  it('says what it cannot do', () => {
    assert.match(profile().stderr, /give --calibrate FILE to rank layers, --steps to time steps, or --fingerprint/);
    assert.match(profile('--steps', '--step-precisions', 'w5').stderr, /--step-precisions: 'w5' is none of bf16, s24, w8, w8a8, w8a7, w4, w4a8, w3/);
    assert.match(profile('--steps', '--step-precisions', 'w4,w4').stderr, /each once/);
  });
});
