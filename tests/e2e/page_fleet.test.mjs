// The dashboard of several replicas and of several models, in a real browser against the real server.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { accessibilityTroubles, openBrowser, openPage } from './browser.mjs';
import { builtin, Server, until } from './server.mjs';

const viewport = { width: 1440, height: 900 };

async function startServer(cache, path, ...flags) {
  const server = await Server.startWith({ path, env: { XDG_CACHE_HOME: cache } },
    '--admin-port', '0', '--max-num-batched-tokens', '256', ...flags);
  await server.logged(/operators' port: (\S+)/);
  server.admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
  return server;
}

const put = (server, path, body) => fetch(`${server.admin}/admin/${path}`, { method: 'PUT', body: JSON.stringify(body) });
const live = (page) => page.getByText('Live', { exact: true }).waitFor();
const complete = (server, fields) => fetch(`${server.url}/v1/completions`, {
  method: 'POST', headers: { 'content-type': 'application/json' },
  body: JSON.stringify({ prompt: 'The old man looked out over the sea and', max_tokens: 200, ignore_eos: true, ...fields }),
}).then((response) => response.json());

// Reads points of the live stream until one satisfies `enough`; returns that one.
async function pointWhere(server, enough) {
  const abort = new AbortController();
  const patience = setTimeout(() => abort.abort(), 120_000);
  const response = await fetch(`${server.admin}/admin/events`, { signal: abort.signal });
  let text = '';
  let found;
  for await (const piece of response.body) {
    text += Buffer.from(piece).toString();
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      const [, event, data] = text.slice(0, end).match(/^event: (\w+)\ndata: (.*)$/s) ?? [];
      text = text.slice(end + 2);
      const { range, point } = event === 'point' ? JSON.parse(data) : {};
      if (range === 'minute' && enough(point)) found ??= point;
    }
    if (found) break;
  }
  clearTimeout(patience);
  abort.abort();
  return found;
}

describe('the dashboard of a fleet', () => {
  let browser;
  let cache;
  let server;
  before(async () => {
    cache = mkdtempSync(join(tmpdir(), 'protean-page-'));
    [browser, server] = await Promise.all([openBrowser(),
      // In turns: the replica at lower precision may be so much faster that the other one gets no request.
      startServer(cache, builtin, '--data-parallel-size', '2', '--max-tensor-parallel-size', '2', '--threads', '1', '--kv-cache-memory', '8MiB',
        '--router', 'round-robin')]);
  });
  after(async () => {
    await browser?.close();
    assert.equal(await server?.stop(), 0, server?.log);
    rmSync(cache, { recursive: true });
  });

  it('shows a group that a PUT formed; its buttons part it and form another', async () => {
    const page = await openPage(browser, server.admin, { viewport });
    await live(page);
    const fleet = page.locator('.fleet');
    const device = (number) => page.getByRole('region', { name: `Memory of device ${number}` });
    assert.equal(await fleet.locator('tbody tr').count(), 2);
    assert.deepEqual(await accessibilityTroubles(page), []);
    await put(server, 'fleet', { groups: [['0', '1']], by: 'shards' });
    await page.locator('.log li', { hasText: /Replicas 0, 1 bec[ao]me one by shards/ }).waitFor();
    await page.locator('.log .reason', { hasText: "An operator's wish" }).waitFor();
    await fleet.getByRole('row', { name: /Replicas 0, 1 one, by shards/ }).waitFor();
    await device(1).getByText('; shard 1 of 2').waitFor();
    await page.getByRole('heading', { name: 'Replicas 0, 1 serve as one, divided by shards' }).waitFor();
    assert.equal(await fleet.locator('tbody tr').count(), 1);
    assert.deepEqual(await accessibilityTroubles(page), []);

    await fleet.getByLabel('Replicas 0, 1').check();
    await fleet.getByRole('button', { name: 'Part' }).click();
    await fleet.locator('.said', { hasText: 'Replicas 0, 1 part.' }).waitFor();  // its answer takes back what is chosen
    await page.locator('.log b', { hasText: 'Replicas 0, 1 have parted' }).waitFor();
    await fleet.getByLabel('Replica 0').check();
    await fleet.getByLabel('Replica 1').check();
    await fleet.getByRole('button', { name: 'Group by layers' }).click();
    await fleet.getByRole('row', { name: /Replicas 0, 1 one, by layers/ }).waitFor();
    await device(1).getByText('; layers 8–15').waitFor();
    assert.equal(await device(1).locator('.cell.layer').count(), 8);
    const { groups } = await (await fetch(`${server.admin}/admin/fleet`)).json();
    assert.deepEqual(groups.map(({ replicas, by }) => [replicas, by]), [[['0', '1'], 'layers']]);
    await put(server, 'fleet', { groups: [['0'], ['1']] });
    await fleet.getByLabel('Replica 1').waitFor();
    await until(async () => (await (await fetch(`${server.admin}/admin/fleet`)).json()).regrouping.length === 0);
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  });

  it('steers one replica, counts its tokens at its precision, and says why replicas cannot be one', async () => {
    const page = await openPage(browser, server.admin, { viewport });
    await live(page);
    await page.getByLabel('Form of').selectOption('Replica 1');
    await page.getByRole('group', { name: 'Precision of the chosen layers' }).getByRole('button', { name: /^w8/ }).first().click();
    await page.locator('.memory .form', { hasText: /Replica 1 all 16 layers w8/ }).waitFor();
    await page.locator('.memory .form', { hasText: 'Replica 0 all 16 layers bf16' }).waitFor();
    await page.locator('.log b', { hasText: 'Replica 1: 32 halves of layers to w8' }).waitFor();
    let goes = true;
    const asking = Promise.all([1, 2, 3, 4].map(async () => { while (goes) await complete(server); }));
    const { tokens, replicas } = await pointWhere(server, (point) => point.replicas?.every((one) => one?.[4] > 0));
    const lowered = Object.keys(tokens).find((name) => name.startsWith('w8'));
    assert.deepEqual([tokens.bf16, tokens[lowered]], replicas.map((one) => one[4]), JSON.stringify(tokens));
    const said = page.locator('.fleet .said', { hasText: /[1-9]\d* requests? moves? from replica 0 to replica 1/ });
    await until(async () => {  // until a click finds a request that decodes in replica 0
      await page.getByRole('button', { name: 'Move', exact: true }).click();
      await page.locator('.fleet .said', { hasText: /replica/ }).waitFor();
      return await said.count() > 0;
    });
    goes = false;
    await asking;
    await page.getByLabel('Form of').selectOption('Replica 0');
    await page.getByRole('group', { name: 'Precision of the chosen layers' }).getByRole('button', { name: /^w4/ }).first().click();
    await page.locator('.memory .form', { hasText: /Replica 0 all 16 layers w4/ }).waitFor();
    await page.locator('.fleet').getByLabel('Replica 0').check();
    await page.locator('.fleet').getByLabel('Replica 1').check();
    await page.getByRole('button', { name: 'Group by shards' }).click();
    await page.getByText(/different forms/).first().waitFor();
    await page.getByLabel('Form of').selectOption('All replicas');
    await page.getByRole('button', { name: 'Release' }).click();
    await page.locator('.memory .form', { hasText: 'Replica 0 all 16 layers bf16' }).waitFor();
    await page.locator('.memory .form', { hasText: 'Replica 1 all 16 layers bf16' }).waitFor();
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  });

  it('is readable on a phone and in the dark', async () => {
    const page = await openPage(browser, `${server.admin}/dashboard`, { viewport: { width: 360, height: 700 }, colorScheme: 'dark' });
    await live(page);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'nothing is cut off');
    assert.deepEqual(await accessibilityTroubles(page), []);
    await page.context().close();
  });

  it('shows the model that is chosen, and lets one sleep', async (t) => {
    const models = await startServer(cache, ['--model', `story=${builtin}`, '--model', `tale=${builtin}`], '--max-model-len', '512', '--device-memory', '96MiB');
    t.after(() => models.process.kill('SIGKILL'));  // if it fails
    const page = await openPage(browser, models.admin, { viewport });
    await live(page);
    await page.getByLabel('Model', { exact: true }).selectOption('tale');
    await page.waitForURL(/\/dashboard\?model=tale$/);
    await live(page);
    await page.getByRole('group', { name: 'Precision of the chosen layers' }).getByRole('button', { name: /^w8/ }).first().click();
    await page.locator('.memory .form', { hasText: 'all 16 layers w8' }).waitFor();
    assert.deepEqual(await accessibilityTroubles(page), []);
    await page.getByRole('button', { name: 'Put story to sleep' }).click();
    await page.getByRole('row', { name: /^story asleep/ }).waitFor();
    await page.getByRole('button', { name: 'Wake story' }).click();
    await page.getByRole('row', { name: /^story in memory/ }).waitFor();
    await page.getByLabel('Model', { exact: true }).selectOption('story');
    await page.locator('.memory .form', { hasText: 'all 16 layers bf16' }).waitFor();

    // Requests hold up the first profiling once it has begun, and the second one waits for it.
    const profile = (method, name) => fetch(`${models.admin}/admin/profile?model=${name}`, { method });
    for (const name of ['story', 'tale']) assert.equal((await profile('POST', name)).status, 202);
    await until(async () => (await (await profile('GET', 'story')).json()).steps > 0, () => models.log);
    let goes = true;
    const asking = (async () => { while (goes) await complete(models, { model: 'tale' }); })();
    await page.reload();
    const bar = (name) => page.getByRole('row', { name: new RegExp(`^${name} `) }).getByRole('progressbar', { name: `Profiling of ${name}`, exact: true });
    await bar('tale').waitFor();
    await page.getByText('Profiling: waiting', { exact: true }).waitFor();
    await page.getByText(/^Profiling: profiling, fingerprint [12] of 2, step \d+ of \d+$/).waitFor();
    assert.ok(await bar('story').evaluate((shown) => shown.position) > 0);
    assert.deepEqual(await accessibilityTroubles(page), []);
    for (const name of ['tale', 'story']) await profile('DELETE', name);
    for (const name of ['story', 'tale']) await bar(name).waitFor({ state: 'detached' });
    goes = false;
    await asking;
    assert.deepEqual(page.troubles, []);
    await page.context().close();
    assert.equal(await models.stop(), 0, models.log);
  });
});
