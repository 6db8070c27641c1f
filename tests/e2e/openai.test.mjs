// OpenAI's API as its SDK sees it.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import OpenAI from 'openai';
import { checkingFetch } from './openapi.mjs';
import { isIdle, model, modelName, Server, skip, until } from './server.mjs';

const prompt = 'Once upon a time there was a little girl';
const messages = [{ role: 'user', content: 'Tell me about a little dog.' }];

describe('OpenAI SDK', { skip }, () => {
  let server;
  let client;

  before(async () => {
    server = await Server.start();
    client = new OpenAI({ baseURL: `${server.url}/v1`, fetch: checkingFetch(server.url), apiKey: 'none', maxRetries: 0 });
  });
  after(async () => {
    assert.equal(await server?.stop(), 0, `exit code after SIGTERM; log:\n${server?.log}`);
  });

  const complete = (fields) =>
    client.completions.create({ model: modelName, prompt, max_tokens: 32, temperature: 0, ...fields });

  const collect = async (stream) => {
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    return chunks;
  };
  const textOf = (chunks) =>
    chunks.map((chunk) => chunk.choices[0]?.text ?? chunk.choices[0]?.delta?.content ?? '').join('');

  const apiError = async (call) => {
    const error = await call.then(
      () => assert.fail('the call should have failed'),
      (caught) => caught,
    );
    assert.ok(error instanceof OpenAI.APIError, `${error}`);
    const said = error.error;
    assert.deepEqual(Object.keys(said).sort(), ['code', 'message', 'param', 'type']);
    assert.ok(said.message.length > 10, said.message);
    assert.equal(typeof error.code, 'string');
    assert.equal(typeof error.type, 'string');
    return error;
  };

  test('lists its model', async () => {
    const models = (await client.models.list()).data;
    assert.deepEqual(models.map((m) => [m.id, m.object]), [[modelName, 'model']]);
    assert.equal((await client.models.retrieve(modelName)).id, modelName);
    assert.equal((await apiError(client.models.retrieve('gpt-4'))).status, 404);
  });

  test('completes a text', async () => {
    const answer = await complete({ max_tokens: 40 });
    assert.equal(answer.object, 'text_completion');
    assert.equal(answer.model, modelName);
    assert.match(answer.id, /^cmpl-/);
    assert.ok(Math.abs(answer.created - Date.now() / 1000) < 60);
    const [choice] = answer.choices;
    assert.match(choice.text, /\b(she|her|was|named|Lily)\b/, 'a trained model continues a story');
    assert.equal(choice.finish_reason, 'length');
    assert.equal(answer.usage.completion_tokens, 40);
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 40);
  });

  test('answers a chat', async () => {
    const answer = await client.chat.completions.create({ model: modelName, messages, max_completion_tokens: 20 });
    assert.equal(answer.object, 'chat.completion');
    assert.match(answer.id, /^chatcmpl-/);
    const [choice] = answer.choices;
    assert.equal(choice.message.role, 'assistant');
    assert.ok(choice.message.content.length > 0);
    assert.ok(['stop', 'length'].includes(choice.finish_reason));
    assert.ok(answer.usage.prompt_tokens > 5);
  });

  test('streams a completion with usage', async () => {
    const whole = await complete({});
    const chunks = await collect(await complete({ stream: true, stream_options: { include_usage: true } }));
    assert.equal(textOf(chunks), whole.choices[0].text);
    assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
    const last = chunks.pop();
    assert.deepEqual(last.choices, []);
    assert.equal(last.usage.completion_tokens, 32);
    assert.equal(last.usage.prompt_tokens, whole.usage.prompt_tokens);
    assert.deepEqual(
      chunks.map((chunk) => chunk.choices[0].finish_reason).filter((reason) => reason !== null),
      ['length'],
    );
    assert.ok(chunks.length > 5, 'text arrives in pieces');
  });

  test('streams a chat', async () => {
    const call = { model: modelName, messages, max_tokens: 24, temperature: 0 };
    const whole = await client.chat.completions.create(call);
    const chunks = await collect(await client.chat.completions.create({ ...call, stream: true }));
    assert.equal(chunks[0].object, 'chat.completion.chunk');
    assert.equal(chunks[0].choices[0].delta.role, 'assistant');
    assert.equal(textOf(chunks), whole.choices[0].message.content);
    assert.equal(chunks.at(-1).choices[0].finish_reason, whole.choices[0].finish_reason);
    assert.ok(chunks.every((chunk) => chunk.usage === undefined || chunk.usage === null));

    const runner = client.chat.completions.stream(call);
    assert.equal(await runner.finalContent(), whole.choices[0].message.content);
  });

  test('ends at a stop string, and keeps it to itself', async () => {
    const free = (await complete({ max_tokens: 60 })).choices[0].text;
    const stop = free.slice(20, 26);
    const expected = free.slice(0, free.indexOf(stop));
    const stopped = (await complete({ max_tokens: 60, stop })).choices[0];
    assert.equal(stopped.text, expected);
    assert.equal(stopped.finish_reason, 'stop');
    const chunks = await collect(await complete({ max_tokens: 60, stop: ['never to be seen', stop], stream: true }));
    assert.equal(textOf(chunks), expected);
    assert.equal(chunks.at(-1).choices[0].finish_reason, 'stop');
  });

  test('a seed repeats itself, alone and in a crowd', async () => {
    const sampled = (seed) => complete({ temperature: 1, seed, max_tokens: 48 }).then((a) => a.choices[0].text);
    const alone = await sampled(7);
    const [crowded, ...others] = await Promise.all([7, 1, 2, 3, 4, 5, 6, 8, 9, 10].map(sampled));
    assert.equal(crowded, alone);
    assert.equal(await sampled(7), alone);
    assert.equal(new Set([alone, ...others]).size, 10, 'other seeds tell other stories');
  });

  test('takes several prompts, and prompts of token ids', async () => {
    const [first, second] = ['The dog was', 'One day a bird'];
    const together = await complete({ prompt: [first, second] });
    assert.deepEqual(together.choices.map((choice) => choice.index), [0, 1]);
    assert.equal(together.choices[0].text, (await complete({ prompt: first })).choices[0].text);
    assert.equal(together.choices[1].text, (await complete({ prompt: second })).choices[0].text);
    assert.equal((await complete({ prompt: [1, 300, 301] })).usage.prompt_tokens, 3);
  });

  test('says what is wrong with a request', async () => {
    const unknown = await apiError(complete({ model: 'gpt-4' }));
    assert.equal(unknown.status, 404);
    assert.equal(unknown.code, 'model_not_found');

    const tooLong = await apiError(complete({ prompt: 'The dog ran. '.repeat(400) }));
    assert.equal(tooLong.status, 400);
    assert.equal(tooLong.code, 'context_length_exceeded');
    assert.equal((await apiError(complete({ max_tokens: 100_000 }))).status, 400);

    for (const [param, value] of [
      ['temperature', -1], ['temperature', 'hot'], ['top_p', 1.5], ['max_tokens', 0], ['stop', 5],
      ['stream', 'yes'], ['prompt', { a: 1 }], ['seed', 'lucky'],
    ]) {
      const error = await apiError(complete({ [param]: value }));
      assert.deepEqual([error.status, error.param, error.type], [400, param, 'invalid_request_error'], param);
    }
    const noMessages = await apiError(client.chat.completions.create({ model: modelName, messages: [] }));
    assert.deepEqual([noMessages.status, noMessages.param], [400, 'messages']);
    const path = await apiError(client.post('/no/such/path', { body: {} }));
    assert.equal(path.status, 404);
  });

  test('refuses a body that is not JSON', async () => {
    const response = await fetch(`${server.url}/v1/completions`, {
      method: 'POST', headers: { 'content-type': 'application/json' }, body: '{"prompt": "a", }',
    });
    assert.equal(response.status, 400);
    assert.equal((await response.json()).error.type, 'invalid_request_error');
  });

  test('stops computing for clients that leave', async () => {
    const aborted = 'vllm:request_success_total';
    const count = async () => {
      const metrics = await server.metrics();
      return [...metrics].filter(([name]) => name.startsWith(aborted) && name.includes('"abort"'))[0][1];
    };
    const before = await count();
    // This model is fast: all of its answers may have ended before a slow client leaves, but not each time.
    await until(async () => {
      await Promise.all(Array.from({ length: 24 }, async (_, i) => {
        const stream = await complete({ prompt: `${prompt} ${i}`, max_tokens: 480, stream: true, ignore_eos: true });
        for await (const chunk of stream) {
          if (chunk.choices.length > 0) break; // the SDK closes the connection
        }
      }));
      const metrics = await server.idleMetrics();
      assert.ok(isIdle(metrics), [...metrics].filter(([name]) => /num_requests|kv_blocks/.test(name)).join('\n'));
      return await count() > before;
    }, () => 'each request without a reader was computed to its end');
  });

  test('reports its health and its work', async () => {
    assert.equal((await fetch(`${server.url}/health`)).status, 200);
    assert.match((await (await fetch(`${server.url}/version`)).json()).version, /^\d+\.\d+/);
    const response = await fetch(`${server.url}/metrics`);
    assert.match(response.headers.get('content-type'), /^text\/plain/);
    const first = await server.metrics();
    await complete({ max_tokens: 10 });
    const second = await server.idleMetrics();
    const grown = (name) => second.get(name) - first.get(name);
    assert.equal(grown('vllm:generation_tokens_total'), 10);
    assert.equal(grown('vllm:e2e_request_latency_seconds_count'), 1);
    assert.ok(grown('vllm:prompt_tokens_total') > 5);
    assert.ok(second.get('protean:kv_blocks_total') > 0);
  });
});

describe('with a key', { skip }, () => {
  test('serves only who has it', async () => {
    const server = await Server.start('--api-key', 'sesame', '--served-model-name', 'stories');
    try {
      const client = (apiKey) => new OpenAI({ baseURL: `${server.url}/v1`, apiKey, maxRetries: 0 });
      await assert.rejects(client('guess').models.list(), OpenAI.AuthenticationError);
      assert.deepEqual((await client('sesame').models.list()).data.map((m) => m.id), ['stories']);
      assert.equal((await fetch(`${server.url}/health`)).status, 200);
    } finally {
      assert.equal(await server.stop(), 0, `${model}: ${server.log}`);
    }
  });
});
