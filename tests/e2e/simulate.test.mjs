// protean simulate: the real engine in virtual time. It follows the cost of steps that it is given, has
// the fields of `protean bench serve`, and gives the same bytes for the same flags.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { writeRandomModel } from './random_model.mjs';
import { program } from './server.mjs';

let scratch;
let model;
before(() => {
  scratch = mkdtempSync(join(tmpdir(), 'protean-simulate-'));
  model = writeRandomModel(join(scratch, 'model'), 4);
});
after(() => rmSync(scratch, { recursive: true, force: true }));

// A machine on which a step takes fixedMs, and layers at a precision more in proportion to their tokens.
function profile(name, fixedMs, tokenUs = {}) {
  const path = join(scratch, name);
  const layers = Object.fromEntries(Object.entries({ bf16: 0, w8: 0, w4: 0, ...tokenUs }).map(([precision, us]) =>
    [precision, { step_us: 1e-9, token_us: us, more_token_us: us, tile_us: 0, bend_tokens: 16, tile_tokens: 16, pass_tokens: 0 }]));
  writeFileSync(path, JSON.stringify({
    steps: {
      cpu: 'Abacus', threads: 2, origin: 'fingerprint', time: 'wall',
      step: {
        fixed_us: fixedMs * 1000, token_us: 0, context_token_us: 0, sequence_us: 0, kv_token_us: 0, far_kv_token_us: 0,
        near_kv_tokens: 0, wake_us: 0, copy_bytes_per_us: 1000,
      },
      layers, logits: { bf16: { step_us: 1e-9, row_us: 0 }, w8: { step_us: 1e-9, row_us: 0 } },
    },
  }));
  return path;
}

const run = (...args) => spawnSync(program, ['simulate', model, '--variant-cache', join(scratch, 'cache'),
  '--threads', '2', ...args], { encoding: 'utf8', input: '' });
function simulated(...args) {
  const { status, stdout, stderr } = run('--json', ...args);
  assert.equal(status, 0, stderr);
  return JSON.parse(stdout);
}
const near = (value, expected, message) => assert.ok(Math.abs(value - expected) < 1e-3, `${message ?? ''}: ${value} is not ${expected}`);

describe('protean simulate', () => {
  it('takes the time of steps from the profile that it is given', () => {
    for (const ms of [10, 25]) {
      const result = simulated('--profile', profile('fixed.json', ms), '--num-prompts', '3', '--max-concurrency', '1',
        '--random-input-len', '40', '--random-output-len', '10');
      assert.equal(result.completed, 3);
      near(result.mean_ttft_ms, ms, 'TTFT is one step');
      near(result.mean_tpot_ms, ms, 'each token is one step');
      near(result.p99_itl_ms, ms);
      near(result.mean_e2el_ms, 10 * ms);
      near(result.duration, 3 * 10 * ms / 1000, 'one request after the other');
      assert.equal(result.total_output_tokens, 30);
    }
    const perToken = simulated('--profile', profile('tokens.json', 1, { bf16: 100 }), '--num-prompts', '1',
      '--random-input-len', '40', '--random-output-len', '2');
    near(perToken.mean_ttft_ms, 1 + 40 * 0.1);
    near(perToken.mean_tpot_ms, 1 + 0.1);
  });

  it('lets prompts wait for steps and for one another', () => {
    const result = simulated('--profile', profile('slow.json', 100), '--num-prompts', '40', '--request-rate', '50',
      '--random-input-len', '64', '--random-output-len', '4');
    assert.equal(result.completed, 40);
    assert.ok(result.median_ttft_ms > 105, `${result.median_ttft_ms}: most arrive during a step`);
    assert.ok(result.max_ttft_ms < 300);
  });

  it('gives the same bytes for the same flags, and others for another seed', () => {
    const flags = ['--json', '--profile', profile('same.json', 5, { bf16: 20 }), '--num-prompts', '200', '--request-rate', '30',
      '--random-range-ratio', '0.5', '--random-input-len', '100', '--random-output-len', '20'];
    const [one, two, other] = [run(...flags), run(...flags), run(...flags, '--seed', '7')];
    assert.equal(one.status, 0, one.stderr);
    assert.equal(one.stdout, two.stdout);
    assert.notEqual(one.stdout, other.stdout);
  });

  it('replays a trace, whose answers share prefixes, and reports good answers', () => {
    const trace = join(scratch, 'trace.jsonl');
    writeFileSync(trace, Array.from({ length: 20 }, (_, i) => JSON.stringify({
      timestamp: i * 500, input_length: 1024, output_length: 5, hash_ids: [1, 100 + i],
    })).join('\n'));
    const result = simulated('--trace', trace, '--profile', profile('trace.json', 10), '--goodput', 'ttft:50');
    assert.equal(result.completed, 20);
    assert.ok(result.total_cached_tokens >= 19 * 496, `${result.total_cached_tokens} tokens of the shared block are cached`);
    assert.equal(result.slo.attainment, 1);
    assert.equal(result.requests.length, 20);
    near(result.requests[19].due_s, 9.5);
    assert.match(result.notes.join(), /Abacus, 2 threads, from a fingerprint/);
    assert.equal(simulated('--trace', trace, '--profile', profile('trace.json', 10), '--no-records').requests, undefined);
  });

  it('lowers layers under a load that lower precisions serve sooner, and tells where tokens were drawn', () => {
    const flags = ['--profile', profile('elastic.json', 2, { bf16: 400, w8: 200, w4: 100 }), '--morph', 'performance',
      '--morph-precisions', 'w8,w4', '--device-memory', '24MiB', '--num-prompts', '300', '--request-rate', '40',
      '--random-input-len', '200', '--random-output-len', '40'];
    const first = run('--json', ...flags);
    assert.equal(first.status, 0, first.stderr);
    const { form, completed, failed } = JSON.parse(first.stdout);
    assert.equal(completed + failed, 300);
    assert.ok(form.swaps_down > 0, JSON.stringify(form));
    assert.ok(Object.keys(form.output_tokens).length > 1, 'tokens were drawn at several precisions');
    assert.equal(first.stdout, run('--json', ...flags).stdout);
    const queued = simulated(...flags, '--morph-rule', 'queued');
    assert.ok(queued.mean_ttft_ms > JSON.parse(first.stdout).mean_ttft_ms, 'without a look ahead, layers are lowered later');
  });

  describe('on a cluster', () => {
    const onCluster = (cluster, ...args) => spawnSync(program, ['simulate', '--like', '150m', '--cluster', cluster, '--json', ...args],
      { encoding: 'utf8', input: '' });

    it('forms a group of replicas for a long request, and parts it, with the same bytes twice', () => {
      const cluster = join(scratch, 'cluster.toml');
      writeFileSync(cluster, 'profile = "A40"\ndevices = 4\nmemory = "2GiB"\nlongest = [400, 800, 1600]\n');
      const trace = join(scratch, 'long.jsonl');
      writeFileSync(trace, Array.from({ length: 60 }, (_, i) => JSON.stringify({
        timestamp: i * 20, input_length: i === 20 ? 1200 : 200, output_length: 20,
      })).join('\n'));
      const flags = ['--trace', trace, '--data-parallel-size', '4', '--max-tensor-parallel-size', '4', '--router', 'least-loaded',
        '--morph-precisions', 'w8'];
      const scaled = onCluster(cluster, ...flags, '--scale', 'paper');
      assert.equal(scaled.status, 0, scaled.stderr);
      const { completed, failed, groups } = JSON.parse(scaled.stdout);
      assert.equal(completed, 60);
      assert.equal(failed, 0);
      assert.equal(groups.together, 3, 'two pairs and then one of four');
      assert.equal(groups.apart, groups.together);
      assert.ok(groups.changes.every((change) => change.by === 'shards' && change.done_s >= change.begun_s));
      assert.equal(scaled.stdout, onCluster(cluster, ...flags, '--scale', 'paper').stdout);
    });

    it('gives a replica the same KV cache however many others are simulated', () => {
      const form = (replicas) => {
        const ran = onCluster(`${replicas}xA100`, '--data-parallel-size', `${replicas}`, '--kv-cache-memory', '1GB',
          '--num-prompts', '1', '--random-input-len', '16', '--random-output-len', '2');
        assert.equal(ran.status, 0, ran.stderr);
        return JSON.parse(ran.stdout).notes.find((note) => note.includes('begins with'));
      };
      assert.equal(form(8), form(1));
    });

    it('gives each replica the KV cache of its own memory, and groups by layers those that differ', () => {
      const blocks = (memory, ...flags) => {
        const cluster = join(scratch, 'unequal.toml');
        writeFileSync(cluster, `profile = "A40"\ndevices = 2\nmemory = ${JSON.stringify(memory)}\n`);
        const ran = onCluster(cluster, '--data-parallel-size', '2', '--morph-precisions', 'w8', ...flags);
        assert.equal(ran.status, 0, ran.stderr);
        const result = JSON.parse(ran.stdout);
        return { ...result, blocks: result.notes.flatMap((note) => /begins with .* ([0-9]+) blocks/.exec(note)?.slice(1).map(Number) ?? []) };
      };
      const short = ['--num-prompts', '1', '--random-input-len', '16', '--random-output-len', '2'];
      const [large] = blocks('2GiB', ...short).blocks;
      const [small] = blocks('1GiB', ...short).blocks;
      assert.ok(large > small, `${large} and ${small}`);
      assert.deepEqual(blocks(['2GiB', '1GiB'], ...short).blocks, [large, small]);
      assert.deepEqual(blocks(['1GiB', '1GiB'], ...short).blocks, [small], 'all are alike');
      // Both replicas together lack KV for these, and a pipeline has more.
      const burst = ['--num-prompts', '300', '--request-rate', '1000', '--random-input-len', '1000', '--random-output-len', '50'];
      const shards = [...short, '--scale', 'paper', '--max-tensor-parallel-size', '2'];
      assert.deepEqual(blocks(['1GiB', '2GiB'], ...shards).blocks, blocks('1GiB', ...shards).blocks, 'groups by shards have equal replicas');
      const { completed, groups } = blocks(['1GiB', '2GiB'], ...burst, '--drop', 'paper');
      assert.equal(completed, 300);
      assert.ok(groups.together > 0, JSON.stringify(groups));
      assert.ok(groups.changes.every(({ by }) => by === 'layers'));
    });

    it('forms a group by layers for a long request', () => {
      const cluster = join(scratch, 'layers.toml');
      writeFileSync(cluster, 'profile = "A40"\ndevices = 4\nmemory = "2GiB"\nlongest = [400, 800, 1600]\n');
      const trace = join(scratch, 'layers.jsonl');
      writeFileSync(trace, Array.from({ length: 60 }, (_, i) => JSON.stringify({
        timestamp: i * 20, input_length: i === 20 ? 1200 : 200, output_length: 20,
      })).join('\n'));
      const ran = onCluster(cluster, '--trace', trace, '--data-parallel-size', '4', '--kv-cache-memory', '64MiB',
        '--morph-precisions', 'w8', '--scale', 'layers');
      assert.equal(ran.status, 0, ran.stderr);
      const { completed, groups } = JSON.parse(ran.stdout);
      assert.equal(completed, 60);
      assert.equal(groups.together, 1, 'four at once');
      assert.equal(groups.apart, 1);
      assert.ok(groups.changes.every((change) => change.by === 'layers'));
    });

    it('serves a request for four replicas although requests for two keep coming', () => {
      const cluster = join(scratch, 'stream.toml');
      writeFileSync(cluster, 'profile = "A40"\ndevices = 4\nmemory = "2GiB"\nlongest = [400, 800, 1600]\n');
      const trace = join(scratch, 'stream.jsonl');
      writeFileSync(trace, Array.from({ length: 200 }, (_, i) => JSON.stringify({
        timestamp: i * 50, input_length: i === 20 ? 1200 : 600, output_length: i === 20 ? 20 : 100,
      })).join('\n'));
      const ran = onCluster(cluster, '--trace', trace, '--data-parallel-size', '4', '--kv-cache-memory', '64MiB',
        '--morph-precisions', 'w8', '--scale', 'layers');
      assert.equal(ran.status, 0, ran.stderr);
      const { completed, requests } = JSON.parse(ran.stdout);
      assert.equal(completed, 200);
      const longest = requests.find((request) => request.index === 20);
      assert.ok(longest.ttft_ms < 6000, `${longest.ttft_ms} ms: later requests go first for 9 s`);
    });

    it('refuses what a group holds only if devices drop weights, which they keep to divide tokens', () => {
      const [tensor, sequence] = [false, true].map((divides) => {
        const cluster = join(scratch, `keeps-${divides}.toml`);
        writeFileSync(cluster, `profile = "A40"\ndevices = 4\nmemory = "2GiB"\nsequence = ${divides}\n`);
        const ran = onCluster(cluster, '--data-parallel-size', '4', '--max-tensor-parallel-size', '4', '--scale', 'paper',
          '--kv-cache-memory', '16MiB', '--morph-precisions', 'w8', '--num-prompts', '1', '--random-input-len', '6000',
          '--random-output-len', '2');
        assert.equal(ran.status, 0, ran.stderr);
        return JSON.parse(ran.stdout);
      });
      assert.equal(tensor.completed, 1);
      assert.equal(sequence.completed, 0);
      assert.equal(sequence.groups?.together ?? 0, 0, 'no replicas group for it in vain');
    });

    it('lets devices divide tokens, which keeps all weights on each', () => {
      const [tensor, sequence, asked] = [[false, '1GiB'], [true, '1GiB'], [true, '2GiB']].map(([divides, memory]) => {
        const cluster = join(scratch, `sequence-${divides}.toml`);
        writeFileSync(cluster, `profile = "A40"\ndevices = 4\nmemory = "${memory}"\nsequence = ${divides}\n`);
        const ran = onCluster(cluster, '--tensor-parallel-size', '4', '--num-prompts', '20', '--request-rate', '10',
          '--random-input-len', '200', '--random-output-len', '20', '--device-memory', '1GiB');
        assert.equal(ran.status, 0, ran.stderr);
        const result = JSON.parse(ran.stdout);
        assert.equal(result.completed, 20);
        const note = result.notes.find((one) => one.includes('begins with'));
        return { ...result, blocks: Number(/([0-9]+) blocks/.exec(note)[1]) };
      });
      assert.ok(sequence.median_tpot_ms < tensor.median_tpot_ms, 'sums of this small model take longer than its weights');
      assert.ok(sequence.blocks < tensor.blocks, 'each device has less memory for KV');
      assert.equal(asked.blocks, sequence.blocks, 'what --device-memory says counts');
    });

    it('computes pipelines, in which devices wait for each other', () => {
      const ran = onCluster('4xA40', '--data-parallel-size', '2', '--pipeline-parallel-size', '2', '--num-prompts', '50',
        '--request-rate', '100', '--random-input-len', '100', '--random-output-len', '20');
      assert.equal(ran.status, 0, ran.stderr);
      const { completed, groups } = JSON.parse(ran.stdout);
      assert.equal(completed, 50);
      assert.ok(groups.bubbles > 0 && groups.bubbles < 1, JSON.stringify(groups));
    });

    it('lets the devices of a node receive rows over one link', () => {
      const ttft = (shared) => {
        const cluster = join(scratch, 'links.toml');
        writeFileSync(cluster, `profile = "A40"\ndevices = 4\nmemory = "2GiB"\nlink_bytes_per_us = 20\n${shared}\n`);
        const ran = onCluster(cluster, '--data-parallel-size', '2', '--pipeline-parallel-size', '2', '--num-prompts', '2',
          '--max-concurrency', '2', '--random-input-len', '400', '--random-output-len', '2', '--router', 'round-robin');
        assert.equal(ran.status, 0, ran.stderr);
        return JSON.parse(ran.stdout).mean_ttft_ms;
      };
      const each = ttft('link_devices = 2');
      assert.ok(ttft('') <= each, 'chunks of one prompt share a link too');
      assert.ok(ttft('link_devices = 4') > 1.2 * each, 'both replicas share a link');
    });

    it('says which devices and models there are', () => {
      assert.match(onCluster('3xZ9').stderr, /device Z9 has no built-in profile/);
      assert.match(onCluster('2xA40').stderr, /the replicas take 1 of its 2 devices/);
      const broken = join(scratch, 'broken.toml');
      writeFileSync(broken, 'profile = "A40"\nspeed = 3\n');
      assert.match(onCluster(broken).stderr, /"speed" is unknown/);
      writeFileSync(broken, 'profile = "A40"\nlink_devices = 0\n');
      assert.match(onCluster(broken).stderr, /link_devices must be 1 to 1024/);
      writeFileSync(broken, 'profile = "A40"\ndevices = 2\nmemory = ["2GiB"]\n');
      assert.match(onCluster(broken).stderr, /memory must be one size, or one for each of 2 devices/);
      writeFileSync(broken, 'profile = "A40"\ndevices = 2\nmemory = ["2GiB", "much"]\n');
      assert.match(onCluster(broken).stderr, /memory must be a size such as "80GiB", or a list/);
      writeFileSync(broken, 'profile = "A40"\ndevices = 2\nmemory = ["2GiB", "1GiB"]\n');
      assert.match(onCluster(broken).stderr, /broken\.toml: it has the memory of 2 devices, and the replicas take 1/);
      assert.match(onCluster(broken, '--data-parallel-size', '2', '--device-memory', '1GiB').stderr, /broken\.toml gives the memory of its devices/);
      assert.match(spawnSync(program, ['simulate', '--like', '150m'], { encoding: 'utf8' }).stderr, /no weights to run here/);
      assert.match(onCluster('2xA40', '--data-parallel-size', '2', '--scale', 'paper').stderr, /--scale paper needs several replicas/);
      assert.match(onCluster('2xA40', '--data-parallel-size', '2', '--keep-attention').stderr, /--keep-attention needs several replicas/);
      assert.match(onCluster('2xA40', '--data-parallel-size', '1', '--overlap-kv').stderr, /--overlap-kv needs several replicas/);
    });
  });

  it('refuses what it cannot know', () => {
    const broken = join(scratch, 'broken.json');
    writeFileSync(broken, '{"cpu": "Abacus", "threads": 2}');
    assert.match(run('--profile', broken).stderr, /broken\.json is not the cost of steps/);
    assert.match(run('--profile', profile('known.json', 1), '--dtype', 'w3').stderr, /known\.json does not tell what layers at w3 cost/);
    assert.match(run('--trace', join(scratch, 'none.csv')).stderr, /none\.csv/);
  });
});
