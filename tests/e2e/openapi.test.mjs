// The description of the API: it is valid, the server answers all of it, and refuses what it forbids.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { bodyValidators } from './openapi.mjs';
import { Server } from './server.mjs';

let server;
before(async () => {
  server = await Server.startBuiltin();
});
after(async () => {
  assert.equal(await server?.stop(), 0);
});

test('every path that is described is answered', async () => {
  const { paths } = await (await fetch(`${server.url}/openapi.json`)).json();
  assert.ok(Object.keys(paths).length > 30);
  for (const [path, item] of Object.entries(paths)) {
    for (const method of Object.keys(item)) {
      const url = server.url + path.replace('{id}', 'builtin').replace('{name}', 'none.js');
      const { status } = await fetch(url, { method: method.toUpperCase(), body: method === 'post' ? '{}' : undefined });
      assert.ok(path === '/assets/{name}' || (status !== 404 && status !== 405 && status < 500), `${method} ${path}: ${status}`);
    }
  }
});

test('the server refuses what the schemas forbid', async () => {
  const validators = await bodyValidators(server.url);
  const chat = { messages: [{ role: 'user', content: 'Hi' }], max_tokens: 1 };
  const cases = [
    ['/v1/chat/completions', chat, [{ messages: [] }, { temperature: -1 }, { n: 129 }, { stop: 7 }, { tools: [{ type: 'x' }] },
      { response_format: { type: 'xml' } }, { stream_options: 1 }, { logprobs: 'yes' }, { tool_choice: 'sometimes' },
      { messages: [{ role: 'robot', content: 'x' }] }, { seed: 1.5 }, { logit_bias: { a: 1 } }]],
    ['/v1/completions', { prompt: 'Hi', max_tokens: 1 }, [{ prompt: [] }, { prompt: [1.5] }, { logprobs: 99 }, { grammar: 1 }]],
    ['/v1/messages', { ...chat }, [{ max_tokens: null }, { max_tokens: 0 }, { stop_sequences: [''] }, { tools: [{ name: 'a' }] }]],
    ['/v1/responses', { input: 'Hi', max_output_tokens: 1 }, [{ input: 7 }, { metadata: { a: 1 } }, { truncation: 'auto' }]],
    ['/v1/embeddings', { input: 'Hi' }, [{ input: null }, { encoding_format: 'hex' }, { dimensions: 0 }]],
    ['/v1/rerank', { query: 'a', documents: ['b'] }, [{ documents: [] }, { query: '' }, { documents: [{}] }, { top_n: -1 }]],
    ['/completion', { prompt: 'Hi', n_predict: 1 }, [{ prompt: null }, { n_predict: -3 }, { response_fields: [1] }]],
    ['/api/chat', { ...chat, stream: false, options: { num_predict: 1 } }, [{ format: 'xml' }, { options: { temperature: 'hot' } }]],
  ];
  for (const [path, body, changes] of cases) {
    const post = async (fields) =>
      (await fetch(server.url + path, { method: 'POST', body: JSON.stringify({ ...body, ...fields }) })).status;
    const valid = validators.get(path);
    assert.ok(valid(body) && (await post({})) === 200, `${path} ${JSON.stringify(valid.errors)}`);
    for (const change of changes) {
      assert.ok(!valid({ ...body, ...change }), `the schema of ${path} allows ${JSON.stringify(change)}`);
      assert.equal(await post(change), 400, `${path} ${JSON.stringify(change)}`);
    }
  }
});

test('the page shows it and loads nothing', async () => {
  const response = await fetch(`${server.url}/docs`);
  assert.match(response.headers.get('content-security-policy'), /^default-src 'none'; style-src 'sha256-/);
  const html = await response.text();
  assert.ok(html.includes('<code>/v1/chat/completions</code>') && !/<script|<link|src=|href=/.test(html));
});
