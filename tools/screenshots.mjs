// Takes the pictures of docs/ from the real program: node tools/screenshots.mjs   (needs build/protean and
// `tools/install-deps pictures`). Serves the built-in model in little memory, puts a burst of requests
// on it, and asks for another form in the middle; then serves two replicas, which become one. Writes
// docs/chat-*.png, docs/dashboard-*.png and docs/fleet-*.png.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { openBrowser } from '../tests/e2e/browser.mjs';
import { builtin, Server, sleep } from '../tests/e2e/server.mjs';

const docs = resolve(dirname(fileURLToPath(import.meta.url)), '../docs');
const cache = mkdtempSync(join(tmpdir(), 'protean-pictures-'));
const schemes = ['light', 'dark'];

async function keepAsking(server, until, streams) {
  const one = async (i) => {
    await sleep(40 * i);
    while (Date.now() < until()) {
      const response = await fetch(`${server.url}/v1/completions`, {
        method: 'POST', headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ prompt: `Chapter ${i + 1}. The old man of the village, who was ${30 + i} years old,`, max_tokens: 160 + 45 * (i % 9), ignore_eos: true }),
      });
      await response.text();
      await sleep(150 * (i % 6));
    }
  };
  await Promise.all(Array.from({ length: streams }, (_, i) => one(i)));
}

const want = (server, wish) => fetch(`${server.admin}/admin/form`, { method: 'PUT', body: JSON.stringify(wish) });

// A page of each colour scheme.
async function openBoth(browser, url, viewport) {
  const pages = [];
  for (const colorScheme of schemes) {
    const context = await browser.newContext({ colorScheme, viewport, deviceScaleFactor: 1.5, locale: 'en-GB', reducedMotion: 'reduce' });
    const page = await context.newPage();
    await page.goto(url);
    pages.push(page);
  }
  return pages;
}

// At the same time: a picture can take seconds on a busy machine.
const takeBoth = (pages, name) => Promise.all(pages.map((page, i) => page.screenshot({ path: join(docs, `${name}-${schemes[i]}.png`) })));

async function startServer(...flags) {
  const server = await Server.startWith({ path: builtin, env: { XDG_CACHE_HOME: cache } },
    '--admin-port', '0', '--device-memory', '64MiB', '--morph', 'off', '--morph-precisions', 'w8a8,w4a8', ...flags);
  await server.logged(/operators' port: (\S+)/);
  server.admin = `http://${server.log.match(/operators' port: (\S+)/)[1]}`;
  return server;
}

// Some layers change their precision under load, while two chats ask.
async function pictureMorph(browser) {
  const server = await startServer();
  try {
    const boards = await openBoth(browser, `${server.admin}/dashboard`, { width: 1400, height: 1130 });
    const chats = await openBoth(browser, server.url, { width: 1180, height: 760 });
    let end = Infinity;
    const quiet = keepAsking(server, () => end, 10);
    await sleep(14_000);
    const burst = keepAsking(server, () => end, 30);
    await sleep(11_000);
    // The chats ask while the form changes.
    await Promise.all(chats.map(async (chat) => {
      await chat.getByLabel('Settings', { exact: true }).click();
      await chat.getByLabel('Most tokens').fill('300');  // question and answer fit on the page
      await chat.getByLabel('Close the settings').click();
      await chat.getByLabel('Message').fill('Tell me a story about a fox and an old clock.');
      await chat.keyboard.press('Enter');
      await chat.locator('.prose').waitFor();
    }));
    const eight = 'w8a8';
    await want(server, { layers: Array.from({ length: 16 }, (_, i) => (i < 11 ? eight : i < 13 ? `bf16/${eight}` : 'bf16')) });
    await sleep(9_000);
    await want(server, { layers: Array.from({ length: 16 }, (_, i) => (i < 5 ? 'w4a8' : i < 11 ? eight : i < 13 ? `bf16/${eight}` : 'bf16')) });
    await sleep(8_000);
    await takeBoth(boards, 'dashboard');
    end = Date.now();
    await Promise.all([quiet, burst]);
    for (const [i, page] of chats.entries()) {
      await page.getByRole('button', { name: 'Answer again' }).waitFor();
      await page.screenshot({ path: join(docs, `chat-${schemes[i]}.png`) });
    }
  } finally {
    await server.stop();
  }
}

// Two of three replicas serve as one by shards, under load.
async function pictureFleet(browser) {
  const server = await startServer('--data-parallel-size', '3', '--max-tensor-parallel-size', '2', '--threads', '1');
  try {
    const boards = await openBoth(browser, `${server.admin}/dashboard`, { width: 1400, height: 1082 });
    let end = Infinity;
    const load = keepAsking(server, () => end, 24);
    await sleep(8_000);
    await fetch(`${server.admin}/admin/fleet`, { method: 'PUT', body: JSON.stringify({ groups: [['0', '1']], by: 'shards' }) });
    await boards[0].getByText('serve as one, divided by shards').waitFor();
    await sleep(15_000);
    await takeBoth(boards, 'fleet');
    end = Date.now();
    await load;
  } finally {
    await server.stop();
  }
}

const browser = await openBrowser();
try {
  await pictureMorph(browser);
  await pictureFleet(browser);
} finally {
  await browser.close();
  rmSync(cache, { recursive: true, force: true });
}
