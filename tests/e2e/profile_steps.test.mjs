// The cost model of a model's steps: it is measured, saved with the machine that it holds for, and read
// back, but refused if it belongs to another model or machine.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { writeRandomModel } from './random_model.mjs';
import { program } from './server.mjs';

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
const keptPath = () => {
  const [folder] = readdirSync(join(scratch, 'cache'));
  return join(scratch, 'cache', folder, 'step-cost.1.json');
};

function predicted(cost, { tokens, sequences, logits, context, kv }, layers) {
  const { step_us, token_us, more_token_us, tile_us, bend_tokens, tile_tokens } = cost.layers[layers];
  const first = Math.min(tokens, bend_tokens);
  const head = cost.logits[layers === 'bf16' ? 'bf16' : 'w8'];
  return step_us + token_us * first + more_token_us * (tokens - first) + tile_us * Math.ceil(tokens / tile_tokens) +
    cost.step.sequence_us * sequences + (logits > 0 ? head.step_us + head.row_us * logits : 0) +
    cost.step.context_token_us * context + cost.step.kv_token_us * kv;
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
    // A held-out step, predicted by hand from what was printed: 10 sequences after 32 tokens each, each read as a tile of 64.
    const ten = steps.held_out.find(({ step, layers }) => step === 'decode 10' && layers.startsWith('w4') && !layers.includes('+'));
    const by_hand = predicted(steps, { tokens: 10, sequences: 10, logits: 10, context: 330, kv: 640 }, 'w4');
    assert.ok(Math.abs(ten.predicted_us / by_hand - 1) < 1e-9, `${ten.predicted_us} is not ${by_hand}`);

    const kept = JSON.parse(readFileSync(keptPath(), 'utf8'));
    assert.deepEqual(kept.layers, steps.layers);
    assert.deepEqual(kept.step, steps.step);
  });

  it('shows what it kept', () => {
    const { status, stdout, stderr } = profile('--show-steps', '--json');
    assert.equal(status, 0, stderr);
    // Numbers are read back to the last bit but one.
    const nearly = (key, value) => (typeof value === 'number' ? Number(value.toPrecision(12)) : value);
    const { steps } = JSON.parse(stdout, nearly);
    const { format, model: identity, ...kept } = JSON.parse(readFileSync(keptPath(), 'utf8'), nearly);
    assert.equal(format, 2);
    assert.match(identity, /^[0-9a-f]{32}$/);
    assert.deepEqual(steps, kept);
    assert.match(profile('--show-steps').stdout, /held-out steps of 8 tokens or more: mean error/);
  });

  it('refuses a file that is not the cost of this model here', () => {
    const text = readFileSync(keptPath(), 'utf8');
    const refused = (pattern, edit) => {
      const object = JSON.parse(text);
      edit(object);
      writeFileSync(keptPath(), JSON.stringify(object));
      const { status, stderr } = profile('--show-steps');
      assert.notEqual(status, 0, `${edit}`);
      assert.match(stderr, pattern);
      assert.match(stderr, /run `protean profile --steps`/);
    };
    refused(/another model, CPU or number of threads/, (kept) => { kept.cpu = 'Abacus'; });
    refused(/another model, CPU or number of threads/, (kept) => { kept.model = '0'.repeat(32); });
    refused(/another model, CPU or number of threads/, (kept) => { kept.threads = 2; });
    refused(/no cost model that this version reads/, (kept) => { kept.format = 99; });
    refused(/holds what no step can cost/, (kept) => { kept.step.sequence_us = -1; });
    refused(/holds what no step can cost/, (kept) => { delete kept.layers.w4.bend_tokens; });
    refused(/holds what no step can cost/, (kept) => { kept.layers = {}; });
    refused(/holds what no step can cost/, (kept) => { delete kept.logits; });
    refused(/holds what no step can cost/, (kept) => { kept.layers = { w5: kept.layers.w4 }; });
    refused(/holds what no step can cost/, (kept) => { kept.layers.w4.token_us = 'much'; });
    writeFileSync(keptPath(), text.slice(0, text.length / 2));
    assert.match(profile('--show-steps').stderr, /cannot be read: run/);
    writeFileSync(keptPath(), text);
    assert.equal(profile('--show-steps').status, 0);
    assert.match(profileWith(3, '--show-steps').stderr, /3 threads were never measured/);
  });

  it('says what it cannot do', () => {
    assert.match(profile().stderr, /give --calibrate FILE to rank layers, --steps to time steps, or both/);
    assert.match(profile('--steps', '--step-precisions', 'w5').stderr, /--step-precisions: 'w5' is none of bf16, w8, w8a8, w8a7, w4, w4a8, w3/);
    assert.match(profile('--steps', '--step-precisions', 'w4,w4').stderr, /each once/);
  });
});
