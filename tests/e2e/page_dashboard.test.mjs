// The dashboard in a real browser against the real server.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { accessibilityTroubles, openBrowser, openPage, startProxy } from './browser.mjs';
import { builtin, instrumented, ownPort, Server, sleep, until } from './server.mjs';

const layers = 16;
// Chromium takes most of the time, and what it asks an instrumented server for again finds nothing more.
const skip = instrumented && 'other tests send the same requests';

async function complete(server, fields = {}) {
  const response = await fetch(`${server.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt: 'The old man looked out over the sea and', max_tokens: 200, ignore_eos: true, ...fields }),
  });
  assert.equal(response.status, 200, await response.clone().text());
  return response.json();
}

async function startForm(cache, port = '0', ...flags) {
  const server = await Server.startWith({ path: builtin, env: { XDG_CACHE_HOME: cache } },
    '--admin-port', port, '--device-memory', '96MiB', ...flags);
  await server.logged(/operators' port: (\S+)/);
  server.admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
  return server;
}

const want = (server, wish) => fetch(`${server.admin}/admin/form`, { method: 'PUT', body: JSON.stringify(wish) }).then((r) => r.json());
const live = (page) => page.getByText('Live', { exact: true }).waitFor();

// Reads the live stream with fetch until `enough` of its events, or until `abort`.
async function watch(server, enough, abort = new AbortController()) {
  const response = await fetch(`${server.admin}/admin/events`, { signal: abort.signal });
  const events = [];
  let text = '';
  for await (const piece of response.body) {
    text += Buffer.from(piece).toString();
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      const [, event, data] = text.slice(0, end).match(/^event: (\w+)\ndata: (.*)$/s) ?? [];
      text = text.slice(end + 2);
      if (event) events.push({ event, data: JSON.parse(data), bytes: data.length });
    }
    if (enough(events)) break;
  }
  abort.abort();
  return events;
}

describe('the dashboard', () => {
  let browser;
  let cache;
  let server;
  before(async () => {
    cache = mkdtempSync(join(tmpdir(), 'protean-page-'));
    [browser, server] = await Promise.all([openBrowser(), startForm(cache)]);
  });
  after(async () => {
    await browser?.close();
    assert.equal(await server?.stop(), 0, server?.log);
    rmSync(cache, { recursive: true });
  });

  it('shows a morph that a PUT asked for, its steps, reason and memory', { skip }, async () => {
    const page = await openPage(browser, server.admin, { viewport: { width: 1440, height: 900 } });
    assert.match(page.url(), /\/dashboard$/);
    await server.logged(/open http:\/\/127\.0\.0\.1:\d+\/dashboard in a browser/);
    await live(page);
    await page.getByText('None yet').waitFor();
    assert.equal(await page.locator('.cell.layer').count(), layers);
    assert.deepEqual(await accessibilityTroubles(page), []);
    const kvBefore = await page.locator('.cell.kv').evaluate((cell) => Number(cell.style.flexGrow));
    await want(server, { layers: 'w4' });
    await page.locator('.log li').first().waitFor();
    await page.getByText('32 halves of layers to w4').waitFor();
    await page.locator('.log .reason', { hasText: "An operator's wish" }).first().waitFor();
    await page.locator('.memory .form', { hasText: 'all 16 layers w4' }).waitFor();
    await page.waitForFunction((before) => Number(document.querySelector('.cell.kv').style.flexGrow) > before, kvBefore);
    assert.equal(await page.locator('.cell.layer i.tint-w4').count(), 2 * layers);
    await complete(server);
    await page.locator('.tiles', { hasText: /First token, P95\s*\d/ }).waitFor();
    await page.getByText('Held by an operator').waitFor();
    assert.deepEqual(await accessibilityTroubles(page), []);
    await page.getByRole('button', { name: 'Show as a table' }).click();
    await page.getByRole('row', { name: /Layer 15, MLP w4/ }).waitFor();
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  });

  it('steers: some layers, embeddings, KV, hold and release, and says what cannot be', { skip }, async () => {
    const page = await openPage(browser, `${server.admin}/dashboard`, { viewport: { width: 1440, height: 900 } });
    await live(page);
    await want(server, { release: true });
    await page.locator('.memory .form', { hasText: 'all 16 layers bf16' }).waitFor();
    await page.locator('.cell.layer').nth(2).click();
    await page.locator('.cell.layer').nth(4).click({ modifiers: ['Shift'] });
    await page.getByText('3 layers: 2–4').waitFor();
    await page.getByRole('button', { name: 'MLP', exact: true }).click();
    await page.getByRole('button', { name: 'w8', exact: false }).first().click();
    await page.getByText(/^Asked for: 3 halves of layers to w8/).waitFor();
    await page.locator('.memory .form', { hasText: '14.5 layers bf16, 1.5 w8' }).waitFor();
    let form;
    await until(async () => {
      ({ form } = await (await fetch(`${server.admin}/admin/form`)).json());
      return /^bf16\/w8/.test(form.layer_precision[3]);
    }, () => JSON.stringify(form));
    assert.equal(form.layer_precision[5], 'bf16');
    await page.getByLabel('KV blocks').fill('99999999');
    await page.getByRole('button', { name: 'Set', exact: true }).click();
    await page.locator('.said.notice.bad').waitFor();
    await page.getByLabel('KV blocks').fill('100');
    await page.getByRole('button', { name: 'Set', exact: true }).click();
    await page.locator('.memory .form', { hasText: '100 KV blocks' }).waitFor();
    await page.getByLabel('Embeddings').selectOption({ index: 1 });
    await page.locator('.memory .form', { hasText: /embeddings w8/ }).waitFor();
    await page.getByRole('button', { name: 'Release' }).click();
    await page.getByText('No policy: the form stays').waitFor();
    await page.locator('.memory .form', { hasText: 'all 16 layers bf16' }).waitFor();
    await page.getByRole('button', { name: 'Hold this form' }).click();
    await page.getByText('Held by an operator').waitFor();
    await page.getByRole('button', { name: 'Release' }).click();
    await page.getByText('No policy: the form stays').waitFor();
    await page.getByRole('button', { name: 'Drain' }).click();
    await page.getByRole('button', { name: 'Keep serving' }).click();
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  });

  it('streams small deltas, and nothing while nothing happens', async () => {
    await server.idleMetrics();
    let seen = false;
    const done = watch(server, (events) => events.some(({ event, data }) => event === 'point' && data.point.running === 3))
      .finally(() => { seen = true; });
    await Promise.all([1, 2, 3].map(async () => { while (!seen) await complete(server, { max_tokens: 400 }); }));
    const events = await done;
    assert.equal(events[0].event, 'hello');
    assert.equal(events[0].data.state.devices[0].layers.length, layers);
    for (const { event, bytes } of events.slice(1)) assert.ok(bytes < 2000, `${event} has ${bytes} bytes`);
    await server.idleMetrics();
    // After hello come the events of the last slots, and then none. If they went on, there would be two a second.
    const abort = new AbortController();
    let told = 0;
    const silent = watch(server, (some) => { told = some.length; return told > 20; }, abort)
      .catch((error) => assert.equal(error.name, 'AbortError'));
    await until(() => told > 0);
    for (let before = 0; before < told;) {
      before = told;
      await sleep(1500);
    }
    assert.ok(told <= 20, 'events go on and on');
    abort.abort();
    await silent;
  });

  it('records and opens the recording, with its morphs and its load', async () => {
    const page = await openPage(browser, `${server.admin}/dashboard`, { viewport: { width: 1440, height: 900 }, acceptDownloads: true });
    await live(page);
    await want(server, { layers: 'w8' });
    await complete(server);
    await page.locator('.memory .form', { hasText: 'all 16 layers w8' }).waitFor();
    await page.getByText('Record', { exact: true }).click();
    assert.deepEqual(await accessibilityTroubles(page), []);
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Last 5 minutes' }).click()]);
    assert.match(download.suggestedFilename(), /^protean-.*\.jsonl$/);
    const path = join(cache, 'recording.jsonl');
    await download.saveAs(path);
    const lines = readFileSync(path, 'utf8').trim().split('\n').map((line) => JSON.parse(line));
    assert.equal(lines[0].protean_recording, 1);
    for (const kind of ['state', 'morphs', 'point', 'request']) assert.ok(lines.some((line) => line.event === kind), kind);
    await want(server, { release: true });
    await page.locator('.memory .form', { hasText: 'all 16 layers bf16' }).waitFor();
    await page.locator('input[type=file]').setInputFiles(path);
    await page.getByText('Recording', { exact: true }).waitFor();
    const scrub = page.getByLabel('Time in the recording');
    await scrub.focus();
    await page.keyboard.press('End');
    await page.locator('.memory .form', { hasText: 'all 16 layers w8' }).waitFor();
    await page.locator('.log', { hasText: 'to w8' }).waitFor();
    assert.deepEqual(await accessibilityTroubles(page), []);
    await page.getByRole('button', { name: 'Back to live' }).click();
    await page.locator('.memory .form', { hasText: 'all 16 layers bf16' }).waitFor();
    await page.locator('input[type=file]').setInputFiles({ name: 'other.txt', mimeType: 'text/plain', buffer: Buffer.from('hello') });
    await page.getByText('other.txt is not a recording of Protean').waitFor();
    assert.equal((await fetch(`${server.admin}/admin/recording?minutes=0`)).status, 400);
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  });

  it('is readable on a phone and in the dark', { skip }, async () => {
    const page = await openPage(browser, `${server.admin}/dashboard`, { viewport: { width: 360, height: 700 }, colorScheme: 'dark' });
    await live(page);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'nothing is cut off');
    assert.deepEqual(await accessibilityTroubles(page), []);
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  });

  it('asks for the key, sees a drain, and goes on when the server starts again', async () => {
    const guarded = await startForm(cache, ownPort(), '--admin-key', 'open-sesame');
    assert.equal((await fetch(`${guarded.admin}/admin/events`)).status, 401);
    assert.equal((await fetch(`${guarded.admin}/admin/recording`)).status, 401);
    const page = await openPage(browser, `${guarded.admin}/dashboard`);
    const question = page.getByRole('heading', { name: 'This server asks for a key' });
    await question.waitFor();
    // The page draws each second. It asks again only when the server does.
    await page.keyboard.press('Escape');
    await sleep(1500);
    assert.equal(await question.count(), 0);
    await page.getByRole('button', { name: 'Give the key' }).click();
    await page.getByLabel('Key', { exact: true }).fill('a guess');
    await page.getByRole('button', { name: 'Use this key' }).click();
    await page.getByRole('alert').waitFor();
    await page.getByLabel('Key', { exact: true }).fill('open-sesame');
    await page.route('**/admin/events', async (route) => { await sleep(1500); await route.continue(); }, { times: 1 });
    await page.getByRole('button', { name: 'Use this key' }).click();
    await live(page);
    assert.equal(await question.count(), 0);
    await page.getByRole('button', { name: 'Drain' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Drain' }).click();
    assert.equal(await guarded.ended, 0, 'an open dashboard does not hold it');
    await page.getByText('Connecting again').waitFor();
    const port = new URL(guarded.admin).port;
    const next = await Server.startWith({ path: builtin, env: { XDG_CACHE_HOME: cache } }, '--admin-port', port, '--admin-key', 'open-sesame');
    await live(page);
    assert.deepEqual(page.troubles, []);
    await page.context().close();
    assert.equal(await next.stop(), 0);
  });

  it('works under a path prefix', { skip }, async () => {
    const proxy = await startProxy(server.admin, '/ops/');
    const page = await openPage(browser, `http://127.0.0.1:${proxy.address().port}/ops/`);
    assert.match(page.url(), /\/ops\/dashboard$/);
    await live(page);
    await page.locator('.cell.layer').first().waitFor();
    assert.deepEqual(page.troubles, []);
    await page.context().close();
    proxy.closeAllConnections();
    proxy.close();
  });

  it('says so if a recording is damaged', { skip }, async () => {
    const page = await openPage(browser, `${server.admin}/dashboard`);
    await live(page);
    await page.locator('input[type=file]').setInputFiles({ name: 'odd.jsonl', mimeType: 'text/plain', buffer: Buffer.from('{"protean_recording":1,"from":1,"to":2,"state":{"form":{}}}') });
    await page.getByText('This recording lacks fields').waitFor();
    await page.getByRole('button', { name: 'Back to live' }).click();
    await page.locator('.cell.layer').first().waitFor();
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  });

  it('holds many dashboards at once, which leave nothing behind', { skip }, async () => {
    await server.idleMetrics();
    const files = server.openFiles();
    const pages = await Promise.all(Array.from({ length: 10 }, () => openPage(browser, `${server.admin}/dashboard`)));
    await Promise.all(pages.map(live));
    await want(server, { layers: 'w8' });
    await Promise.all(pages.map((page) => page.locator('.memory .form', { hasText: 'all 16 layers w8' }).waitFor()));
    await want(server, { release: true });
    await Promise.all(pages.map((page) => page.context().close()));
    await until(() => server.openFiles() <= files, () => `${server.openFiles()} open files, ${files} before`);
  });

  it('steers the mode and the quality floor of the policy', { skip }, async () => {
    const page = await openPage(browser, `${server.admin}/dashboard`);
    await live(page);
    const floor = page.getByLabel('Quality floor', { exact: true });
    await page.getByLabel('Mode of the policy').selectOption('accuracy');
    await page.getByText('The policy decides: accuracy').waitFor();
    await complete(server);
    const weighed = page.getByRole('region', { name: 'Explain' }).getByRole('table');
    await weighed.getByRole('columnheader', { name: 'Late', exact: true }).waitFor();
    assert.ok(await weighed.getByRole('row').count() > 1, 'a row for each form that the policy weighed');
    await floor.fill('4');
    await page.getByRole('button', { name: 'Set the quality floor' }).click();
    await page.getByText(/'4' is not a quality floor/).waitFor();
    await floor.fill('4layers');
    await page.getByRole('button', { name: 'Set the quality floor' }).click();
    await page.locator('#quality-floor[placeholder="4layers"]').waitFor();
    const policy = await (await fetch(`${server.admin}/admin/form`)).json();
    assert.deepEqual([policy.mode, policy.quality_floor], ['accuracy', '4layers']);
    await want(server, { mode: 'off', quality_floor: 'none' });
    await page.getByText('No policy: the form stays').waitFor();
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  });
});
