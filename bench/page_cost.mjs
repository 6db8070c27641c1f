// What the pages cost: node bench/page_cost.mjs [ROUNDS [SECONDS]]   (needs build/protean, or PROTEAN, and a Chromium)
// Prints the compressed size of both pages, their first paint on this machine, and the output tokens/s and
// memory of a server under 64 streams while 10 dashboards watch it and while none does, in turns of SECONDS.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openBrowser } from '../tests/e2e/browser.mjs';
import { builtin, Server, sleep } from '../tests/e2e/server.mjs';

const rounds = Number(process.argv[2] ?? 6);
const turnMs = 1000 * Number(process.argv[3] ?? 20);
const cache = mkdtempSync(join(tmpdir(), 'protean-page-cost-'));
const server = await Server.startWith({ path: builtin, env: { XDG_CACHE_HOME: cache } }, '--admin-port', '0', '--max-num-seqs', '64');
await server.logged(/operators' port: (\S+)/);
const admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;

async function firstPaint(url) {
  const browser = await openBrowser();
  const times = [];
  let bytes = 0;
  for (let i = 0; i < 7; ++i) {
    const page = await (await browser.newContext()).newPage();
    await page.goto(url, { waitUntil: 'load' });
    await page.waitForFunction(() => performance.getEntriesByName('first-contentful-paint').length > 0);
    times.push(await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0].startTime));
    bytes = await page.evaluate(() => [performance.getEntriesByType('navigation')[0], ...performance.getEntriesByType('resource')]
      .filter((entry) => /\/(assets\/.*|dashboard)?$/.test(new URL(entry.name).pathname)).reduce((sum, entry) => sum + entry.encodedBodySize, 0));
    await page.context().close();
  }
  await browser.close();
  return { bytes, ms: times.sort((a, b) => a - b)[3] };
}

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

async function stream(i, goes) {
  while (goes()) {
    const response = await fetch(`${server.url}/v1/completions`, {
      method: 'POST', headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ prompt: `Chapter ${i}. The old man`, max_tokens: 400, ignore_eos: true, stream: true }),
    });
    for await (const _ of response.body);
  }
}

// A dashboard's connection: it reads what the page reads. `end` returns the bytes since `begin`.
function watch() {
  const abort = new AbortController();
  let bytes = 0;
  const ended = (async () => {
    try {
      for await (const piece of (await fetch(`${admin}/admin/events`, { signal: abort.signal })).body) bytes += piece.length;
    } catch {}
    return bytes;
  })();
  return { begin: () => { bytes = 0; }, end: () => { abort.abort(); return ended; } };
}

try {
  for (const [name, url] of [['chat', server.url], ['dashboard', `${admin}/dashboard`]]) {
    const { bytes, ms } = await firstPaint(url);
    console.log(`${name}: ${(bytes / 1000).toFixed(1)} kB compressed, first paint after ${ms.toFixed(0)} ms (median of 7)`);
  }
  let goes = true;
  const streams = Array.from({ length: 64 }, (_, i) => stream(i, () => goes));
  await sleep(5000);
  const rates = { 0: [], 10: [] };
  const perCpu = { 0: [], 10: [] };
  for (let round = 0; round < rounds; ++round) {
    for (const count of round % 2 ? [10, 0] : [0, 10]) {
      const watchers = Array.from({ length: count }, watch);
      await sleep(1000);
      watchers.forEach((watcher) => watcher.begin());
      const [before, begun, cpu] = [(await server.metrics()).get('vllm:generation_tokens_total'), performance.now(), server.cpuSeconds()];
      await sleep(turnMs);
      const tokens = (await server.metrics()).get('vllm:generation_tokens_total') - before;
      const seconds = (performance.now() - begun) / 1000;
      rates[count].push(tokens / seconds);
      perCpu[count].push(tokens / (server.cpuSeconds() - cpu));
      const bytes = await Promise.all(watchers.map((watcher) => watcher.end()));
      console.log(`${count} dashboards: ${(tokens / seconds).toFixed(0)} tokens/s, ${perCpu[count].at(-1).toFixed(1)} tokens per CPU second, ${(server.residentBytes() / 2 ** 20).toFixed(1)} MiB` +
        (count ? `, ${(bytes[0] / seconds).toFixed(0)} bytes/s each` : ''));
    }
  }
  for (const [what, of] of [['tokens/s', rates], ['tokens per CPU second', perCpu]]) {
    const ratios = of[10].map((rate, i) => (100 * rate) / of[0][i]).sort((a, b) => a - b);
    console.log(`${what} with 10 dashboards, of those with none in the same round: ${median(ratios).toFixed(1)} % (median of ${rounds}, ${ratios[0].toFixed(1)} to ${ratios.at(-1).toFixed(1)})`);
  }
  goes = false;
  await Promise.all(streams);
} finally {
  await server.stop();
  rmSync(cache, { recursive: true, force: true });
}
