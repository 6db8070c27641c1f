// A real Chromium for the tests of the web pages: Debian's, or the program that CHROMIUM names.

import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { createServer, request as httpRequest } from 'node:http';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const places = [process.env.CHROMIUM, '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'];

export async function openBrowser() {
  const executablePath = places.find((path) => path && existsSync(path));
  if (!executablePath) throw new Error('there is no Chromium: run tools/install-deps test, or name one in CHROMIUM');
  return chromium.launch({ executablePath, args: ['--no-sandbox'], timeout: 120_000 });  // root in a container has no sandbox
}

// A page that writes down what goes wrong in it: errors, refusals of the content security policy,
// and requests to other hosts.
export async function openPage(browser, url, options = {}) {
  const context = await browser.newContext({ bypassCSP: false, ...options });
  context.setDefaultTimeout(120_000);  // a busy machine takes its time
  const page = await context.newPage();
  page.troubles = [];
  page.on('pageerror', (error) => page.troubles.push(`error: ${error.message}`));
  page.on('console', (message) => {
    if (/content.security.policy|trusted/i.test(message.text())) page.troubles.push(message.text());
  });
  const host = new URL(url).host;
  page.on('request', (request) => {
    const to = new URL(request.url());
    if (to.protocol !== 'blob:' && to.host !== host) page.troubles.push(`request to ${to.host}`);
  });
  await page.goto(url);
  return page;
}

// What axe finds wrong with a page as it is, in words. An instrumented server sends the same page, and axe takes seconds.
export async function accessibilityTroubles(page) {
  if (process.env.LOAD_MEMORY === 'any') return [];
  // evaluate() goes past the content security policy, a script element would not.
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  return violations.map((rule) => `${rule.id}: ${rule.help}: ${rule.nodes.map((node) => node.html.slice(0, 160)).join(' | ')}`);
}

// A proxy that serves the server under a path prefix, as an operator's would.
export async function startProxy(target, prefix) {
  const proxy = createServer((incoming, outgoing) => {
    if (!incoming.url.startsWith(prefix)) return outgoing.writeHead(404).end();
    const asked = httpRequest(target + incoming.url.slice(prefix.length - 1), { method: incoming.method, headers: incoming.headers }, (answer) => {
      outgoing.writeHead(answer.statusCode, answer.headers);
      answer.pipe(outgoing);
    });
    incoming.pipe(asked);
  });
  proxy.listen(0, '127.0.0.1');
  await once(proxy, 'listening');
  return proxy;
}
