// Random forms every 50 ms while clients come, read and leave, in morph.test.mjs and groups.test.mjs, until each of these
// has happened some times; for longer:
// MORPH_SECONDS=300 node --test-name-pattern storm --test morph.test.mjs
//
// Every answer that is read must end with a stop or have all its tokens, at rest all pages must be where
// they were, and the form must be one that can be asked for again.

import assert from 'node:assert/strict';
import { random, sleep, until } from './server.mjs';

// An answer is whole if a stop token ended it, or if it has as many tokens as were asked for.
function checkWhole(text, maxTokens) {
  assert.ok(!text.includes('"error"'), text.slice(-300));
  assert.ok(text.endsWith('data: [DONE]\n\n'), text.slice(-100));
  const chunks = text.split('\n\n').filter((event) => event.startsWith('data: {')).map((event) => JSON.parse(event.slice(6)));
  const ends = chunks.map(({ choices }) => choices[0]?.finish_reason).filter(Boolean);
  assert.equal(ends.length, 1, text.slice(-300));
  assert.ok(ends[0] === 'stop' || (ends[0] === 'length' && chunks.at(-1).usage.completion_tokens === maxTokens), text.slice(-300));
}

async function drive(server, going, below, count) {
  const words = ['The dog', 'a king', 'ran', 'to the sea', 'and saw', 'a big tree', 'with Tom', 'happy'];
  while (going()) {
    const prompt = Array.from({ length: 1 + below(60) }, () => words[below(words.length)]).join(' ');
    const leaver = new AbortController();
    const leaves = below(4) === 0;
    const maxTokens = 1 + below(150);
    try {
      const response = await fetch(`${server.url}/v1/completions`, {
        method: 'POST', signal: leaver.signal, headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ prompt, stream: true, stream_options: { include_usage: true }, max_tokens: maxTokens,
          temperature: below(2), seed: below(99) }),
      });
      assert.equal(response.status, 200, leaves ? '' : await response.clone().text());
      if (leaves) setTimeout(() => leaver.abort(), below(200));
      checkWhole(await response.text(), maxTokens);
      ++count.finished;
    } catch (error) {
      if (error.name !== 'AbortError') throw error;
      ++count.left;
    }
  }
}

async function shape(server, going, below, layers, count) {
  const precisions = ['bf16', 'w8', 'w4'];
  const embeddings = () => below(2) ? 'bf16' : 'w8';
  while (going()) {
    const kind = below(5);
    const one = () => precisions[below(3)];
    const wish = kind === 0 ? { layers: one() }
      : kind === 1 ? { kv_blocks: 80 + below(300) }
      : kind === 2 ? { layers: Array.from({ length: layers }, one) }
      : kind === 3 ? { embeddings: embeddings() }
      : { layers: Array.from({ length: layers }, () => `${one()}/${one()}`), kv_blocks: 80 + below(200) };
    const response = await fetch(`${server.admin}/admin/form`, { method: 'PUT', body: JSON.stringify(wish) });
    const answer = await response.json();
    assert.ok([202, 409].includes(response.status), JSON.stringify({ wish, answer }));
    ++count.wishes;
    count.refused += response.status === 409 ? 1 : 0;
    await sleep(50);
  }
}

export async function storm(server, { seconds, streams, seed, layers }) {
  const count = { finished: 0, left: 0, wishes: 0, refused: 0 };
  const before = await (await fetch(`${server.admin}/admin/form`)).json();
  const [end, patience] = [seconds * 1000, seconds * 1000 + 120_000].map((ms) => Date.now() + ms);
  const enough = () => count.wishes > Math.max(10, count.refused + 5) && count.finished > 0 && count.left > 0;
  const going = () => Date.now() < end || (!enough() && Date.now() < patience);
  await Promise.all([
    ...Array.from({ length: streams }, (_, i) => drive(server, going, random(seed + i), count)),
    shape(server, going, random(seed + streams), layers, count),
  ]);
  assert.ok(enough(), JSON.stringify(count));
  const released = await fetch(`${server.admin}/admin/form`, { method: 'PUT', body: JSON.stringify({ layers: 'bf16', embeddings: 'bf16' }) });
  assert.equal(released.status, 202);
  const idle = await server.idleMetrics();
  assert.equal(idle.get('vllm:num_requests_running'), 0);
  assert.equal(idle.get('protean:kv_blocks_used'), 0);
  let now;
  await until(async () => {
    now = await (await fetch(`${server.admin}/admin/form`)).json();
    return now.form.text === now.wanted.text;
  }, () => JSON.stringify(now));
  assert.equal(now.totals.failures, 0, JSON.stringify(now.totals));
  assert.deepEqual([now.form, now.pages], [before.form, before.pages]);
  console.log(`storm: ${count.finished} finished, ${count.left} left, ${count.wishes} wishes (${count.refused} refused), ` +
    `${now.totals.swaps_down + now.totals.swaps_up} swaps, ${now.totals.kv_resizes} resizes, ${now.totals.blocks_moved} blocks moved in ${seconds} s`);
}
