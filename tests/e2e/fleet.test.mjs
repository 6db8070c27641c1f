// Several replicas behind one address: what clients get is what one replica answers.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { before, describe, it } from 'node:test';
import { load } from './load.mjs';
import { builtin, instrumented, parseMetrics, program, Server, skip, sleep, until } from './server.mjs';
import { hangBusiestThread, loseMemory } from './faults.mjs';

const prefix = 'The old man looked out over the sea and thought of the long way that he had come. '.repeat(3);

// 32 requests: short and long, greedy and seeded, some with the same beginning, some with rules.
const requests = Array.from({ length: 32 }, (_, i) => ({
  prompt: `${i % 4 === 0 ? prefix : ''}${'Once upon a time '.repeat(1 + (i % 5))}number ${i}`,
  max_tokens: 20 + 7 * (i % 9),
  temperature: i % 2,
  seed: i,
  ignore_eos: true,
  ...(i % 8 === 3 && { logprobs: 2 }),
  ...(i % 8 === 5 && { n: 2, presence_penalty: 0.5 }),
  ...(i % 8 === 7 && { structured_outputs: { regex: '[a-z ]{5,40}' } }),
}));

async function answer(url, body) {
  const response = await fetch(`${url}/v1/completions`, {
    method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body),
  });
  const reply = await response.json();
  assert.equal(response.status, 200, JSON.stringify(reply));
  return reply.choices.map(({ text, finish_reason, logprobs }) => ({ text, finish_reason, logprobs }));
}

const startFleet = (replicas, ...flags) => startFleetWith('8MiB', replicas, ...flags);

async function startFleetWith(kv, replicas, ...flags) {
  const server = await Server.startBuiltin(
    '--data-parallel-size', `${replicas}`, '--admin-port', '0', '--kv-cache-memory', kv, '--max-num-batched-tokens', '256', ...flags);
  await server.logged(/operators' port: (\S+)/);
  server.admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
  return server;
}

describe('a fleet of replicas', () => {
  const shards = ['--max-tensor-parallel-size', '2'];  // decides the order of sums
  const long = { prompt: 'Once upon a time', max_tokens: 900, temperature: 0, ignore_eos: true };
  let wanted;
  let wantedOfShards;
  let longOfShards;
  const answersOfOne = async (bodies, ...flags) => {
    const one = await startFleet(1, ...flags);
    const all = await Promise.all(bodies.map((body) => answer(one.url, body)));
    assert.equal(await one.stop(), 0, one.log);
    return all;
  };
  before(async () => {
    wanted = await answersOfOne(requests);
    wantedOfShards = await answersOfOne([...requests, long], ...shards);
    longOfShards = wantedOfShards.pop();
  });

  for (const router of instrumented ? ['first-token'] : ['first-token', 'freeness', 'least-loaded', 'round-robin']) {
    it(`answers 32 streams with the tokens of one replica (${router})`, async () => {
      const server = await startFleet(2, '--router', router);
      try {
        assert.deepEqual(await Promise.all(requests.map((body) => answer(server.url, body))), wanted);
        const metrics = await server.idleMetrics();
        const of = (name, replica) => metrics.get(`${name}{engine="${replica}",model_name="builtin"}`);
        for (const replica of [0, 1]) {
          assert.ok(of('protean:requests_routed_total', replica) > 4, `replica ${replica}`);
          assert.ok(of('vllm:generation_tokens_total', replica) > 0, `replica ${replica}`);
        }
        const fleet = await (await fetch(`${server.admin}/admin/fleet`)).json();
        assert.equal(fleet.router, router);
        assert.deepEqual(fleet.replicas.map(({ replica }) => replica), [0, 1]);
        const routed = fleet.replicas.reduce((sum, { routed_total: count }) => sum + count, 0);
        assert.equal(routed, wanted.flat().length);
        assert.equal(fleet.replicas[0].adopted_total, fleet.replicas[1].released_total);
        assert.match(fleet.replicas[1].form, /layers bf16:16/);
      } finally {
        assert.equal(await server.stop(), 0, server.log);
      }
    });
  }

  it('moves requests while they run, and no client notices', async () => {
    const server = await startFleet(2);
    try {
      let done = false;
      const moving = (async () => {
        for (let i = 0; !done; ++i) {
          const reply = await fetch(`${server.admin}/admin/fleet/migrate`, { method: 'PUT', body: JSON.stringify({ from: i % 2, to: 1 - (i % 2) }) });
          assert.equal(reply.status, 202);
          await sleep(2);
        }
      })();
      moving.catch(() => {});  // it fails where it is awaited
      await until(async () => {
        assert.deepEqual(await Promise.all(requests.map((body) => answer(server.url, body))), wanted);
        return (await server.metrics()).get('protean:requests_adopted_with_kv_total') > 0;
      }).finally(() => { done = true; });
      await moving;
    } finally {
      assert.equal(await server.stop(), 0, server.log);
    }
  });

  for (const by of ['shards', 'layers']) {
    it(`become one group by ${by} and part again while requests run, and no client notices`, async () => {
      const server = await startFleet(2, ...shards, '--shutdown-timeout', '600');
      const put = (groups) => fetch(`${server.admin}/admin/fleet`, { method: 'PUT', body: JSON.stringify({ groups, by }) });
      const fleet = async () => (await fetch(`${server.admin}/admin/fleet`)).json();
      const settled = (count) => until(async () => {
        const now = await fleet();
        return now.groups.length === count && now.regrouping.length === 0 && now;
      }, async () => `${JSON.stringify(await fleet())}\n${server.log}`);
      try {
        const answers = Promise.all(requests.map((body) => answer(server.url, body)));
        for (let turn = 0; turn < 3; ++turn) {
          const together = await put([['0', '1']]);
          assert.equal(together.status, 202);
          assert.ok((await together.json()).changes[0].steps.length > 4);
          const grouped = await settled(1);
          assert.deepEqual(grouped.groups[0].replicas, ['0', '1']);
          assert.equal(grouped.groups[0].by, by);
          assert.equal((await put([['0'], ['1']])).status, 202);
          await settled(2);
        }
        assert.deepEqual(await answers, wantedOfShards);
        await put([['0', '1']]);
        await settled(1);
        assert.deepEqual(await Promise.all(requests.map((body) => answer(server.url, body))), wantedOfShards);
        const { groups: [group], history } = await fleet();
        assert.ok(group.bubble_share < 1, JSON.stringify(group));
        assert.ok(by === 'layers' ? group.bubble_share > 0 : group.bubble_share >= 0, JSON.stringify(group));
        assert.equal(history.length, 7);
        assert.ok(history.every(({ failure }) => failure === null), JSON.stringify(history));
        const metrics = await server.idleMetrics();
        assert.equal(metrics.get('protean:groups{model_name="builtin"}'), 1);
        // The second replica's memory holds KV of the group, which is counted once.
        const blocks = metrics.get('protean:kv_blocks_total{engine="0",model_name="builtin"}');
        assert.ok(blocks > 0 && metrics.get('protean:kv_blocks_total') === blocks, `${blocks} blocks`);
        assert.ok(by === 'shards' || metrics.get('protean:bubble_share{engine="0",model_name="builtin"}') > 0);
        assert.equal(metrics.get('protean:regroupings_total{model_name="builtin",to="group"}'), 4);
        const moved = await fetch(`${server.admin}/admin/fleet/migrate`, { method: 'PUT', body: JSON.stringify({ from: 0, to: 1 }) });
        assert.equal(moved.status, 503);
        assert.match((await moved.json()).error.message, /replica 1 serves in a group: name the group's first replica/);
        const refused = await put([['0', '7']]);
        assert.equal(refused.status, 400);
        assert.match((await refused.json()).error.message, /there is no replica 7: name 0 to 1/);

        // SIGTERM while a request runs and the group begins to part: the answer ends as it would. If the answer ended before
        // this, once more.
        let last;
        await until(async () => {
          await put([['0', '1']]);
          await settled(1);
          let ended = false;
          last = answer(server.url, long).finally(() => { ended = true; });
          while (!ended && (await server.metrics()).get('vllm:num_requests_running') === 0) await sleep(2);
          assert.equal((await put([['0'], ['1']])).status, 202);
          if (ended) await settled(2);
          return !ended;
        });
        assert.equal(await server.stop(), 0, server.log);
        assert.deepEqual(await last, longOfShards);
      } finally {
        assert.equal(await server.stop(), 0, server.log);
      }
    });
  }

  const drops = { paper: 'queued requests lack KV', released: "the replicas' KV is full, by a vote" };
  for (const [drop, why] of Object.entries(drops)) {
    it(`groups while a burst lacks KV, and parts after it (--drop ${drop})`, async () => {
      const server = await startFleetWith('2MiB', 2, ...shards, '--drop', drop, '--max-model-len', '600');
      const fleet = async () => (await fetch(`${server.admin}/admin/fleet`)).json();
      const burst = async () => assert.deepEqual(await Promise.all(requests.map((body) => answer(server.url, body))), wantedOfShards);
      try {
        await until(async () => {  // until a burst lacks KV
          await burst();
          const { history, regrouping } = await fleet();
          return regrouping.length > 0 || history.length > 0;
        });
        if (drop === 'released') {  // which looks twice a second at what is in use, and parts once that has fallen
          await until(async () => (await fleet()).regrouping.length === 0);
          const end = Date.now() + 2_000;
          await Promise.all(requests.map(async (body, i) => {  // no stream waits for others: KV is in use at each look
            do {
              assert.deepEqual(await answer(server.url, body), wantedOfShards[i]);
            } while (Date.now() < end);
          }));
        }
        const [first, ...others] = await until(async () => {
          const { history } = await fleet();
          return history.length > 1 && history.at(-1).to === 'replicas' && history;
        }, async () => `${JSON.stringify(await fleet())}\n${server.log}`);
        assert.deepEqual([first.to, first.by, first.reason, first.failure], ['group', 'layers', why, null]);
        assert.ok(first.steps_meanwhile > 0 && first.kv_bytes > 0 && first.recomputed >= 0, JSON.stringify(first));
        assert.ok(first.kv_grown_after_s === null || first.kv_grown_after_s >= first.done_after_s, JSON.stringify(first));
        assert.ok(others.every(({ failure }) => failure === null), JSON.stringify(others));
        const { groups } = await fleet();
        assert.deepEqual(groups.map(({ replicas, stages }) => [replicas, stages.length]), [[['0'], 1], [['1'], 1]]);
      } finally {
        assert.equal(await server.stop(), 0, server.log);
      }
    });
  }

  it('groups by layers for a request that a replica holds only at a lower precision (--drop joint)', async () => {
    const server = await startFleetWith('2MiB', 2, ...shards, '--drop', 'joint', '--morph', 'accuracy');
    const fleet = async () => (await fetch(`${server.admin}/admin/fleet`)).json();
    try {
      const { kv_blocks: blocks, kv_block_tokens: tokens } = (await (await fetch(`${server.admin}/admin/form?replica=0`)).json()).form;
      const [{ text }] = await answer(server.url, { ...long, max_tokens: blocks * tokens + 40 });
      const [shorter, longer] = [text, longOfShards[0].text].sort((a, b) => a.length - b.length);
      assert.ok(longer.startsWith(shorter), text);
      const { groups, history: [first] } = await until(async () => {
        const now = await fleet();
        return now.regrouping.length === 0 && now;
      });
      assert.deepEqual([first.to, first.by, first.reason, first.failure],
        ['group', 'layers', 'the longest request needs more KV blocks than a replica has', null]);
      assert.deepEqual(groups.map(({ replicas, stages }) => [replicas, stages.length]), [[['0', '1'], 2]]);
    } finally {
      assert.equal(await server.stop(), 0, server.log);
    }
  });

  // A member of a group fails with requests in flight: the other one goes on, with the requests of both.
  const failures = {
    'stops answering': { by: 'shards', why: 'has not answered for 8 s',
      fail: (server) => hangBusiestThread(server.process.pid, () => fetch(`${server.admin}/admin/fleet`, { signal: AbortSignal.timeout(4_000) })) },
    'loses its memory': { by: 'layers', why: 'has lost memory: an access to its pages failed', fail: (server) => loseMemory(server.process.pid) },
  };
  for (const [what, { by, why, fail }] of Object.entries(failures)) {
    it(`goes on without a device that ${what}`, async (t) => {
      const server = await startFleet(2, ...shards, '--threads', '1', '--device-timeout', '8');
      const fleet = async () => (await fetch(`${server.admin}/admin/fleet`)).json();
      let failing;
      try {
        await fetch(`${server.admin}/admin/fleet`, { method: 'PUT', body: JSON.stringify({ groups: [['0', '1']], by }) });
        await until(async () => {
          const { groups, regrouping } = await fleet();
          return groups.length === 1 && regrouping.length === 0;
        }, () => server.log);
        // All are asked again and again, so that some run when the device fails and some come while the group is being
        // parted.
        let injected = false;
        const answers = (async () => {
          for (let last = false; !last;) {
            last = injected;
            assert.deepEqual(await Promise.all(requests.map((body) => answer(server.url, body))), wantedOfShards);
          }
        })();
        answers.catch(() => {});  // so that a failure below is what the test reports
        failing = await fail(server);
        injected = true;
        await answers;
        if (failing?.refused) return t.skip(`this system lets no process stop a thread of another: ${failing.refused}`);
        const { groups, out_of_service: failed, history } = await until(async () => {
          const now = await fleet();
          return now.out_of_service.length > 0 && now.regrouping.length === 0 && now.history.at(-1).failure !== null && now;
        }, async () => `${JSON.stringify(await fleet())}\n${server.log}`);
        assert.deepEqual(groups.map(({ replicas }) => replicas), [['0'], ['1']]);
        assert.equal(failed.length, 1, JSON.stringify(failed));
        assert.equal(failed[0].reason, why);
        assert.equal(history.at(-1).failure, `replica ${failed[0].replica} ${why}`);
        await server.logged(new RegExp(`replica ${failed[0].replica} is out of service: it ${why}`));
        assert.equal((await server.metrics()).get('protean:replicas_out_of_service{model_name="builtin"}'), 1);
        await failing?.goOn();
        assert.deepEqual(await Promise.all(requests.map((body) => answer(server.url, body))), wantedOfShards);
      } finally {
        await failing?.goOn();
        assert.equal(await server.stop(), 0, server.log);
      }
    });
  }

  it('sends prompts where their beginning was computed', async () => {
    const server = await startFleet(2);
    try {
      // So long that a replica which has it answers sooner, however slow its latest steps were.
      const long = prefix.repeat(5);
      for (let i = 0; i < 6; ++i) await answer(server.url, { prompt: `${long}${i}`, max_tokens: 2 });
      const { replicas } = await (await fetch(`${server.admin}/admin/fleet`)).json();
      assert.deepEqual(replicas.map(({ routed_total: count }) => count).sort(), [0, 6]);
    } finally {
      assert.equal(await server.stop(), 0, server.log);
    }
  });

  it('has a form for each replica', async () => {
    const server = await startFleet(2, '--device-memory', '96MiB');
    try {
      const form = async (replica) => (await fetch(`${server.admin}/admin/form?replica=${replica}`)).json();
      const put = (query, wish) => fetch(`${server.admin}/admin/form${query}`, { method: 'PUT', body: JSON.stringify(wish) });
      for (const [query, words] of [['', /no replica is named: this server has 2 replicas, name one with \?replica=0 to 1/],
        ['?replica=2', /replica=2: this server has 2 replicas/], ['?replica=x', /replica=x/], ['?replica=', /replica=:/]]) {
        const refused = await put(query, { layers: 'w8' });
        assert.equal(refused.status, 400);
        assert.match((await refused.json()).error.message, words);
      }
      assert.equal((await put('?replica=1', { layers: 'w8' })).status, 202);
      await until(async () => (await form(1)).form.layer_precision.every((at) => at === 'w8'), () => server.log);
      assert.ok((await form(0)).form.layer_precision.every((at) => at === 'bf16'));
      const metrics = parseMetrics(await (await fetch(`${server.admin}/metrics`)).text());
      assert.equal(metrics.get('protean:layers{engine="1",model_name="builtin",precision="w8"}'), 16);
      assert.equal(metrics.get('protean:layers{engine="0",model_name="builtin",precision="bf16"}'), 16);
      const { morphs } = await (await fetch(`${server.admin}/admin/morphs?replica=0`)).json();
      assert.deepEqual(morphs, []);
    } finally {
      assert.equal(await server.stop(), 0, server.log);
    }
  });

  it('says in a line what does not fit, and what would', () => {
    const inspect = (...flags) => spawnSync(program, ['inspect', builtin, ...flags], { encoding: 'utf8' });
    const refused = inspect('--data-parallel-size', '1000', '--max-model-len', '8192');
    assert.equal(refused.status, 2);
    assert.match(refused.stderr, /^protean: .* do not fit the \S+ \S+ that are free on a device: .*, --data-parallel-size \d+, .*\n$/);
    assert.match(inspect('--data-parallel-size', '0').stderr, /'0' is not a whole number from 1 to 1024/);
    assert.match(inspect('--data-parallel-size', '2', '--devices', '3').stderr, /3 devices do not divide among --data-parallel-size 2: use a multiple of it, such as 4/);
    assert.match(inspect('--data-parallel-size', '2', '--cpus', '0').stdout,
      /warning +2 replicas share 1 CPU and wait for each other: --data-parallel-size 1 would not\n/);
    const unknown = spawnSync(program, ['serve', builtin, '--router', 'random'], { encoding: 'utf8' });
    assert.match(unknown.stderr, /'random' is none of first-token, freeness, least-loaded, round-robin/);
  });

  it('survives 64 streams with clients that leave', { skip, timeout: 300_000 }, () =>
    load({ seconds: Number(process.env.LOAD_SECONDS ?? 10), streams: 64, seed: 7, flags: ['--data-parallel-size', '2'] }));
});
