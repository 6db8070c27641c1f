import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { candidatesOf, shown } from '../src/dashboard/explain';
import {
  groupMorphs, groupText, holdsText, layersByPrecision, loadOf, mergePatch, Model, regroupingsOf, regroupingText, runsText, samplesOf, serversOf, withIdle,
  type DevicePages, type Form, type Hello, type MorphStep, type Point, type Regrouping, type Sample, type State,
} from '../src/dashboard/model';
import { jobsOf } from '../src/dashboard/jobs';
import { Recording } from '../src/dashboard/recording';
import { bytes, seconds, short } from '../src/ui/format';

const point = (t: number, more: Partial<Point> = {}): Point => ({ t, running: 1, waiting: 0, kv_used: 3, kv_blocks: 9, prompt_tokens: 0, preemptions: 0, ...more });
const morph = (id: number, more: Partial<MorphStep> = {}): MorphStep => ({
  id, kind: 'swap', text: `layer ${id} mlp to w8`, layer: id, half: 'mlp', to: 'w8', reason: 'requests wait', asked_at: 100, ready_after_s: null, done_after_s: null, failure: null, remark: null, ...more,
});
const hello = (): Hello => ({
  now: 1000, state: { model: 'a', targets: { ttft_s: 5 } } as unknown as State, morphs: [],
  ranges: { minute: { step_s: 0.5, points: [] }, hour: { step_s: 10, points: [] }, all: { step_s: 1, points: [] } },
});

describe('the state', () => {
  it('follows merge patches and keeps what is unchanged', () => {
    const before = { a: { b: 1, c: [1] }, d: { e: 1 } };
    const after = mergePatch(before, { a: { b: 2, c: null, f: { g: 1 } } });
    assert.deepEqual(after, { a: { b: 2, f: { g: 1 } }, d: { e: 1 } });
    assert.equal(after.d, before.d);
    assert.deepEqual(before, { a: { b: 1, c: [1] }, d: { e: 1 } });
    assert.deepEqual(mergePatch({ a: [1, 2] }, { a: [3] }), { a: [3] });
  });
  it('takes events of the stream, and passes over those it does not know', () => {
    const model = new Model(hello());
    model.apply('state', { model: 'b' });
    model.apply('later', { model: 'c' });
    assert.deepEqual(model.state, { model: 'b', targets: { ttft_s: 5 } });
    model.apply('morphs', [morph(1), morph(2)]);
    model.apply('morphs', [morph(1, { done_after_s: 2 })]);
    assert.deepEqual([...model.morphs.values()].map((step) => step.done_after_s), [2, null]);
    for (let i = 0; i < 200; ++i) model.apply('point', { range: 'minute', point: point(i) });
    assert.equal(model.ranges.minute.points.length, 120);
    model.apply('range', { range: 'all', step_s: 2, points: [point(1)] });
    assert.deepEqual(model.ranges.all, { step_s: 2, points: [point(1)] });
  });
});

describe('the time axis', () => {
  it('joins coarse slots with the finer ones that follow', () => {
    const { ranges } = hello();
    ranges.all.points = [point(940), point(941)];
    ranges.hour.points = [point(940), point(950)];
    ranges.minute.points = [point(959.5), point(960), point(999.5)];
    const times = samplesOf(ranges, 'all', 1000).map((sample) => sample.t);
    assert.deepEqual(times.filter((t) => Number.isInteger(t * 2)), [940, 941, 942, 950, 960, 960.5, 999.5]);
  });
  it('shows zeros where nothing ran, from before its beginning to now', () => {
    const samples: Sample[] = [{ ...point(10), step: 0.5 }, { ...point(20), step: 0.5 }];
    const whole = withIdle(samples, 30);
    assert.deepEqual(whole.map((sample) => [Math.round(sample.t * 2) / 2, sample.running]), [[10, 1], [10.5, 0], [20, 0], [20, 1], [20.5, 0], [30, 0]]);
    assert.deepEqual(withIdle([{ ...point(10), step: 0.5 }], 10.6).length, 1);
    const { ranges } = hello();
    ranges.minute.points = [point(100)];
    assert.equal(samplesOf(ranges, 'minute', 1000).at(-1)!.running, 0, 'idle for long');
  });
});

describe('morphs', () => {
  it('are grouped by decision, the latest first', () => {
    const groups = groupMorphs([morph(1), morph(2), morph(3, { kind: 'kv', to: undefined, kv_blocks: 1200 }), morph(4, { reason: 'quiet', to: 'bf16', asked_at: 200 }), morph(5, { asked_at: 300 })]);
    assert.deepEqual(groups.map((group) => group.steps.length), [1, 1, 3]);
    assert.equal(groupText(groups[2]!.steps), '2 halves of layers to w8, KV to 1,200 blocks');
    assert.equal(groupText([morph(1, { kind: 'embeddings' }), morph(2)]), '1 half of layers to w8, embeddings to w8');
  });
  it('of different replicas stay apart although they interleave', () => {
    const groups = groupMorphs([1, 2, 3, 4].map((id) => morph(id, { replica: id % 2, asked_at: 100 + id })));
    assert.deepEqual(groups.map(({ replica, steps }) => [replica, steps.map(({ id }) => id)]), [[0, [2, 4]], [1, [1, 3]]]);
    const model = new Model({ ...hello(), morphs: [morph(1, { replica: 0 }), morph(1, { replica: 1 })] });
    assert.equal(model.morphs.size, 2, 'each replica counts its steps');
  });
  it('name layers in runs', () => assert.equal(runsText([7, 1, 0, 2, 9, 10]), '0–2, 7, 9–10'));
});

describe('a fleet', () => {
  const form = (precision: string): Form => ({ text: precision, layer_precision: [precision, precision], embeddings: 'bf16', kv_precision: 'bf16', kv_block_tokens: 16, kv_blocks: 9 });
  const status = (precision: string) => ({ form: form(precision), load: {} });
  const state = (more: object) => ({ replicas: { 0: status('bf16'), 1: status('w8') }, ...more }) as unknown as State;
  it('shows which replicas serve, and for which others', () => {
    assert.deepEqual(serversOf(state({})).map(({ replica, replicas, by }) => [replica, replicas, by]), [[0, [0], undefined], [1, [1], undefined]]);
    const group = { replicas: { 0: status('bf16'), 1: { serves_in: 0 } }, groups: [{ replicas: ['0', '1'], by: 'shards' }] };
    assert.deepEqual(serversOf(state(group)).map(({ replica, replicas, by }) => [replica, replicas, by]), [[0, [0, 1], 'shards']]);
    assert.deepEqual(layersByPrecision([form('bf16'), form('w8/w4')]), { bf16: 1, w8: 0.5, w4: 0.5 });
  });
  it('shows the load of each replica', () => {
    const sample: Sample = { ...point(1, { replicas: [[2, 1, 3, 10, 8], null], tokens: { bf16: 8 } }), step: 0.5 };
    assert.deepEqual(loadOf(sample, 0), { running: 2, waiting: 1, kvUsed: 3, kvBlocks: 10, tokensPerS: 16 });
    assert.equal(loadOf(sample, 1).kvBlocks, 0, 'another replica serves for it');
    assert.equal(loadOf({ ...sample, replicas: undefined }, 0).running, 1, 'one replica is the whole fleet');
    assert.deepEqual(withIdle([sample], 9)[1]!.replicas, [[0, 0, 0, 10, 0], null]);
  });
  it('says what a device holds', () => {
    const device: DevicePages = { device: 1, replica: 1, holders: [0, 1], layers: [[1, 2], [1, 2]], embeddings: 3, kv: 4 };
    assert.equal(holdsText(device), '');
    assert.equal(holdsText({ ...device, layers: [[0, 0], [1, 2]] }), 'layer 1');
    const runs = (...layers: [number, number, number, number][]) => ({ ...device, shards: { of: 2, embeddings: [1, 1] as [number, number], layers } });
    assert.equal(holdsText(runs([1, 1, 1, 1], [1, 1, 1, 1])), 'shard 1 of 2');
    assert.equal(holdsText(runs([0, 2, 1, 1], [0, 2, 0, 2])), 'shards of 1 of 4 halves of layers');
    assert.equal(holdsText({ ...runs([0, 0, 0, 0], [0, 1, 0, 1]), layers: [[0, 0], [1, 2]] }), 'layer 1; shard 0 of 2');
  });
  it('tells changes of groups, the latest first', () => {
    const change = (more: Partial<Regrouping>): Regrouping => ({ replicas: ['0', '1'], by: 'layers', to: 'group', reason: 'r', asked_at: 1, steps: 4, blocks_moved: 0, preempted: 0, ...more });
    const all = regroupingsOf(state({ regroupings: { 5: change({ done_after_s: 2 }) }, regrouping: [change({ asked_at: 9, to: 'replicas' })] }));
    assert.deepEqual(all.map(regroupingText), ['Replicas 0, 1 part', 'Replicas 0, 1 became one by layers']);
    assert.equal(regroupingText(change({ to: 'replicas', done_after_s: 1, failure: 'why' })), 'Replicas 0, 1 did not become one by layers');
  });
});

describe('a recording', () => {
  const lines = [
    { protean_recording: 1, from: 10, to: 40, state: hello().state },
    { t: 12, event: 'point', data: point(12) }, { t: 15, event: 'state', data: { model: 'b' } },
    { t: 20, event: 'request', data: {} }, { t: 30, event: 'morphs', data: [morph(1)] }, { t: 31, event: 'unheard', data: 1 },
  ];
  const recording = Recording.parse(lines.map((line) => JSON.stringify(line)).join('\n') + '\n', 'r.jsonl');
  it('shows any time, forwards and back', () => {
    let at = recording.at(14, null);
    assert.equal(at.model.state.model, 'a');
    at = recording.at(31, at);
    assert.equal(at.model.state.model, 'b');
    assert.equal(at.model.morphs.size, 1);
    at = recording.at(11, at);
    assert.equal(at.model.state.model, 'a');
    assert.equal(at.model.morphs.size, 0);
    assert.deepEqual(recording.samples().map((sample) => sample.running), [1, 0, 0]);
    assert.equal(recording.requests(), 1);
  });
  it('is refused if it is none', () => {
    for (const text of ['', 'hello', '{}', '{"protean_recording":2}', `${JSON.stringify(lines[0])}\n{"t":`]) {
      assert.throws(() => Recording.parse(text, 'x.txt'), /^Error: x\.txt is not a recording/);
    }
  });
});

describe('explanations', () => {
  it('show candidates wherever the state has them', () => {
    const rows = [{ form: 'w8', chosen: true, predicted: { late_share: 0.25, wait_s: 0.5 } }, { form: 'bf16', predicted: { late_share: 1 } }];
    assert.deepEqual(candidatesOf({ load: {} }), []);
    assert.deepEqual(candidatesOf({ candidates: rows }).map((list) => list.rows), [rows]);
    const [last] = candidatesOf({ decisions: [{ at: 1, candidates: [{ form: 'x' }] }, { at: 2, reason: 'busy', candidates: rows }] });
    assert.deepEqual([last!.at, last!.reason, last!.title], [2, 'busy', 'decisions']);
    const [list] = candidatesOf({ predictions: [{ precision: 'bf16:2' }, { precision: 'w4:2' }] });
    assert.deepEqual(list!.rows.map((row) => row.chosen), [true, false]);
    const [judged] = candidatesOf({ predictions: [{ verdict: 'replaced by the chosen form' }, { verdict: 'chosen' }] });
    assert.deepEqual(judged!.rows.map((row) => row.chosen), [false, true]);
    assert.equal(shown('late_share', 0.25), '25 %');
    assert.equal(shown('wait_s', 0.5), '500 ms');
    assert.equal(shown('tokens_per_s', 1234), '1,234');
  });
});

describe('numbers', () => {
  it('are short', () => {
    assert.deepEqual([0, 0.0042, 0.123, 2.5, 45, 400].map(seconds), ['0', '4.2 ms', '123 ms', '2.50 s', '45.0 s', '7 min']);
    assert.deepEqual([0, 1.5, 12.25, 1234, 45_678, 3_400_000].map(short), ['0', '1.5', '12.3', '1,234', '45.7k', '3.4M']);
    assert.deepEqual([512, 2048, 76_000_000].map(bytes), ['512 B', '2.00 KiB', '72.5 MiB']);
  });
});

describe('the jobs of a model', () => {
  it('say how far they are, where that is known', () => {
    assert.deepEqual(jobsOf({ model: 'a', residence: 'awake' }), []);
    assert.deepEqual(jobsOf({ model: 'a', residence: 'deploying' }), [{ name: 'Deployment of a', text: 'under way' }]);
    assert.deepEqual(jobsOf({ model: 'a', residence: 'deploying', progress: { loaded: 0.256 } }),
      [{ name: 'Deployment of a', text: 'under way, 26 % of the weights', share: 0.256 }]);
    assert.deepEqual(jobsOf({
      model: 'a', residence: 'awake', jobs: [
        { job: 'intent', intent: 'min-cost', state: 'planning', progress: { steps: 10, of_steps: 40 } },
        { job: 'profile', state: 'profiling', progress: { steps: 10, of_steps: 40, fingerprint: 2, fingerprints: 2 } },
        { job: 'profile', state: 'waiting' }],
    }), [
      { name: 'Change of intent of a', text: 'min-cost: planning, step 10 of 40', share: 0.25 },
      { name: 'Profiling of a', text: 'profiling, fingerprint 2 of 2, step 10 of 40', share: 0.625 },
      { name: 'Profiling of a', text: 'waiting' }]);
  });
});
