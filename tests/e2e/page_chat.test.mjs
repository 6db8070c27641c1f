// The chat page in a real browser against the real server.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { request as httpRequest } from 'node:http';
import { gunzipSync } from 'node:zlib';
import { after, before, describe, it } from 'node:test';
import { accessibilityTroubles, openBrowser, openPage, startProxy } from './browser.mjs';
import { ownPort, Server } from './server.mjs';

// A server's events that say `text` in pieces.
function answerEvents(text) {
  const pieces = text.match(/[\s\S]{1,7}/g).map((content) => ({ choices: [{ index: 0, delta: { content } }] }));
  const end = { choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] };
  return [...pieces, end].map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join('') + 'data: [DONE]\n\n';
}

async function ask(page, text) {
  await page.getByLabel('Message').fill(text);
  await page.getByRole('button', { name: 'Send' }).click();
}

// Lets answers go on up to that many tokens.
const extend = (page, tokens) => page.route('**/v1/chat/completions', (route) => route.continue({
  postData: JSON.stringify({ ...route.request().postDataJSON(), ignore_eos: true, max_completion_tokens: tokens }) }));
const ended = (page) => page.getByRole('button', { name: 'Answer again' }).last().waitFor();

describe('the chat page', () => {
  let browser;
  let server;
  before(async () => {
    [browser, server] = await Promise.all([openBrowser(), Server.startBuiltin('--admin-port', '0')]);
  });
  after(async () => {
    await browser?.close();
    assert.equal(await server?.stop(), 0);
  });

  it('is small, compressed, cached and closed to other sources', async () => {
    const response = await fetch(server.url, { headers: { 'accept-encoding': 'gzip' } });
    assert.equal(response.status, 200);
    assert.match(response.headers.get('content-security-policy'), /default-src 'none'.*frame-ancestors 'none'/);
    assert.equal(response.headers.get('content-encoding'), 'gzip');
    const html = await response.text();
    assert.doesNotMatch(html, /<script(?![^>]*src=)|<style|\sstyle=|\son\w+=/, 'nothing is inline');
    let bytes = html.length;
    for (const [, file] of html.matchAll(/(?:src|href)="\.\/([^"]+)"/g)) {
      const asset = await fetch(`${server.url}/${file}`, { headers: { 'accept-encoding': 'gzip' } });
      assert.match(asset.headers.get('cache-control'), /immutable/, file);
      bytes += Number(asset.headers.get('content-length'));
    }
    assert.ok(bytes < 300_000, `${bytes} bytes`);
    const again = await fetch(server.url, { headers: { 'if-none-match': response.headers.get('etag'), 'accept-encoding': 'gzip' } });
    assert.equal(again.status, 304);
    const raw = await new Promise((settle) => httpRequest(`${server.url}/`, { headers: { 'accept-encoding': 'gzip' } }, (answer) => {
      const pieces = [];
      answer.on('data', (piece) => pieces.push(piece)).on('end', () => settle(Buffer.concat(pieces)));
    }).end());
    assert.equal(gunzipSync(raw).toString(), html);
    assert.equal((await fetch(`${server.url}/dashboard`)).status, 404, 'the dashboard is not for the public');
    await server.logged(/open http:\/\/127\.0\.0\.1:\d+\/ in a browser/);
  });

  it('streams an answer, shows its speed and precision, and keeps the conversation', async () => {
    const page = await openPage(browser, server.url);
    // So long that it comes in pieces, between which time passes: an answer of one piece has no speed.
    await extend(page, 300);
    await ask(page, 'Tell me a story.');
    await ended(page);
    const answer = await page.locator('.prose').innerText();
    assert.ok(answer.length > 0);
    assert.match(await page.locator('.facts').innerText(), /bf16[\s\S]*tokens\/s[\s\S]*s to the first/);
    assert.match(await page.locator('.ribbon').getAttribute('aria-label'), /^\d+ tokens at bf16$/);
    assert.deepEqual(await accessibilityTroubles(page), []);
    await page.reload();
    await page.getByRole('button', { name: 'Tell me a story.', exact: true }).click();
    await page.locator('.prose').waitFor();
    assert.equal(await page.locator('.prose').innerText(), answer, 'it was kept');
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Export', exact: true }).click()]);
    await page.getByRole('button', { name: 'Delete "Tell me a story."' }).click();
    await page.getByText('Conversations are kept in this browser').waitFor();
    await page.getByLabel('Conversations to import').setInputFiles({ name: 'chats.json', mimeType: 'application/json', buffer: readFileSync(await download.path()) });
    await page.getByRole('button', { name: 'Tell me a story.', exact: true }).click();
    await page.locator('.prose').waitFor();
    assert.equal(await page.locator('.prose').innerText(), answer, 'it came back from the exported file');
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  });

  it('stops, answers again, edits', async () => {
    const page = await openPage(browser, server.url);
    await page.getByLabel('Settings', { exact: true }).click();
    await page.getByLabel('Stop at').fill('nothing that is ever said');
    // The answer does not end by itself, and others make it slow enough to be stopped.
    await extend(page, 900);
    const others = new AbortController();
    const streams = Promise.allSettled(Array.from({ length: 48 }, async () => (await fetch(`${server.url}/v1/completions`, { method: 'POST', signal: others.signal,
      body: JSON.stringify({ prompt: 'Once upon a time', max_tokens: 900, ignore_eos: true, stream: true }) })).text()));
    await ask(page, 'Write a long story about a ship.');
    await page.locator('.prose').waitFor();
    await page.getByRole('button', { name: 'Stop', exact: true }).click();
    await ended(page);
    others.abort();
    await streams;
    await page.unroute('**/v1/chat/completions');
    assert.match(await page.locator('.facts').innerText(), /stopped/);
    const idle = await server.idleMetrics();
    assert.equal(idle.get('vllm:num_requests_running'), 0, 'the server stopped too');
    await page.getByRole('button', { name: 'Answer again' }).click();
    await ended(page);
    assert.equal(await page.locator('.answered').count(), 1);
    await page.locator('.asked').hover();
    await page.getByRole('button', { name: 'Edit' }).click();
    await page.getByLabel('Message').first().fill('Write one line.');
    await page.getByRole('button', { name: 'Send' }).first().click();
    await ended(page);
    assert.equal(await page.locator('.bubble').innerText(), 'Write one line.');
    assert.equal(await page.locator('.answered').count(), 1);
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  });

  it('shows logprobs, answers by a schema, and passes the results of tools', async () => {
    const page = await openPage(browser, server.url);
    await page.getByLabel('Settings', { exact: true }).click();
    await page.getByLabel(/Logprobs/).check();
    await page.getByText('JSON schema', { exact: true }).click();
    await page.getByLabel('Schema', { exact: true }).fill('{"enum": ["a fox", "a clock"]}');
    assert.deepEqual(await accessibilityTroubles(page), []);
    await ask(page, 'Which one?');
    await ended(page);
    assert.match(await page.locator('.prose').innerText(), /"a (fox|clock)"/);
    await page.getByRole('button', { name: 'Show tokens' }).click();
    await page.locator('.token').first().focus();
    await page.locator('.alternatives tr.drawn').waitFor();
    await page.keyboard.press('ArrowRight');
    assert.ok((await page.locator('.alternatives tr').count()) > 1);
    assert.deepEqual(await accessibilityTroubles(page), []);

    await page.getByText('Text', { exact: true }).click();
    await page.getByLabel('Temperature').fill('seven');
    await ask(page, 'Once more');
    await page.getByText('Give a number from 0 to 2').waitFor();
    await page.getByLabel('Temperature').fill('');
    await page.getByRole('button', { name: 'Insert an example' }).click();
    const chunk = (delta, finish_reason = null) => `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason }] })}\n\n`;
    await page.route('**/v1/chat/completions', (route) => {
      const { messages, tools } = route.request().postDataJSON();
      assert.equal(tools[0].function.name, 'get_weather');
      const last = messages.at(-1);
      return route.fulfill({ contentType: 'text/event-stream', body: last.role === 'tool'
        ? answerEvents(`So it is ${last.content} for ${last.tool_call_id}.`)
        : chunk({ tool_calls: [{ index: 0, id: 'call_1', function: { name: 'get_weather', arguments: '{"city":' } }] })
          + chunk({ tool_calls: [{ index: 0, function: { arguments: '"Bern"}' } }] }) + chunk({}, 'tool_calls') });
    });
    await page.getByRole('button', { name: 'Send' }).click();
    await page.getByLabel('What get_weather returns').fill('rain');
    await page.getByRole('button', { name: 'Send the result' }).click();
    await page.getByText('So it is rain for call_1.').last().waitFor();
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  });

  it('makes a hostile answer harmless', async () => {
    const page = await openPage(browser, server.url);
    const hostile = [
      '<script>window.harm = 1</script>', '<img src=x onerror="window.harm = 2">', '![pixel](http://evil.example/pixel.png)',
      '[click](javascript:window.harm=3)', '[good](https://good.example/a?b=1&c=2)', '<iframe src="http://evil.example"></iframe>',
      '<svg onload="window.harm=4">', '<form action="http://evil.example"><button>Go</button></form>',
      '<a href="data:text/html,<script>window.harm=5</script>">data</a>', '<style>body{display:none}</style>',
      '[x](https://a.example "t\\" onmouseover=window.harm=6")', '```html\n<script>window.harm = 7</script>\n```',
      '<math><mtext><table><mglyph><style><img src=x onerror=window.harm=8>', '[ref]: javascript:window.harm=9\n\n[a][ref]',
      '| a | b |\n|---|---|\n| <b onclick="window.harm=10">x</b> | `<script>` |',
    ].join('\n\n');
    await page.route('**/v1/chat/completions', (route) => route.fulfill({ contentType: 'text/event-stream', body: answerEvents(hostile) }));
    await ask(page, 'Harm me.');
    await ended(page);
    for (const link of await page.locator('.prose a').all()) await link.hover();
    assert.equal(await page.evaluate(() => window.harm), undefined);
    const found = await page.locator('.prose').evaluate((prose) => ({
      dangerous: prose.querySelectorAll('script, img, iframe, svg:not(.icon), form, input, style, object, embed, math').length,
      handlers: [...prose.querySelectorAll('*')].flatMap((node) => [...node.attributes]).filter(({ name }) => /^on|^style$/.test(name)).length,
      links: [...prose.querySelectorAll('a[href]')].map((link) => [link.getAttribute('href'), link.rel, link.target]),
    }));
    assert.equal(found.dangerous, 0);
    assert.equal(found.handlers, 0);
    assert.ok(found.links.length >= 2);
    for (const [href, rel, target] of found.links) {
      assert.match(href, /^https?:/);
      assert.match(rel, /noopener/);
      assert.equal(target, '_blank');
    }
    assert.match(await page.locator('.prose').innerText(), /<script>window\.harm = 1<\/script>/, 'it is shown as text');
    assert.deepEqual(page.troubles, [], 'neither requests nor refusals');
    await page.context().close();
  });

  it('works on a phone, in the dark, with the keyboard alone', async () => {
    const page = await openPage(browser, server.url, { viewport: { width: 360, height: 700 }, colorScheme: 'dark', hasTouch: true });
    await page.getByText('Ask builtin something').waitFor();
    assert.deepEqual(await accessibilityTroubles(page), []);
    await page.keyboard.type('Hello there');
    await page.keyboard.press('Enter');
    await ended(page);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'nothing is cut off');
    await page.getByRole('button', { name: 'Conversations' }).click();
    await page.getByRole('button', { name: 'Hello there', exact: true }).waitFor();
    assert.deepEqual(await accessibilityTroubles(page), []);
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  });

  it('works under a path prefix', async () => {
    const proxy = await startProxy(server.url, '/llm/protean/');
    const page = await openPage(browser, `http://127.0.0.1:${proxy.address().port}/llm/protean/`);
    await ask(page, 'Hello');
    await ended(page);
    assert.deepEqual(page.troubles, []);
    await page.context().close();
    proxy.closeAllConnections();
    proxy.close();
  });

  it('asks for a key, and waits for a server that starts again', async () => {
    const port = ownPort();
    const guarded = await Server.startBuiltin('--api-key', 'open-sesame', '--port', port);
    const page = await openPage(browser, guarded.url);
    await page.getByRole('heading', { name: 'This server asks for a key' }).waitFor();
    assert.deepEqual(await accessibilityTroubles(page), []);
    await page.getByLabel('Key', { exact: true }).fill('wrong');
    await page.getByRole('button', { name: 'Use this key' }).click();
    await page.getByText(/The API key is missing or wrong/).waitFor();
    await page.getByLabel('Key', { exact: true }).fill('open-sesame');
    await page.getByRole('button', { name: 'Use this key' }).click();
    await page.getByText('Ask builtin something').waitFor();
    assert.equal(await guarded.stop(), 0);
    await ask(page, 'Are you there?');
    await page.getByText('The server does not answer').first().waitFor();
    const next = await Server.startBuiltin('--api-key', 'open-sesame', '--port', port);
    await page.getByRole('button', { name: 'Answer again' }).click();
    await page.locator('.facts').waitFor();
    assert.deepEqual(page.troubles, []);
    await page.context().close();
    assert.equal(await next.stop(), 0);
  });
});
