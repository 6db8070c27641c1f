// Anthropic's Messages API as its SDK sees it.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { checkingFetch } from './openapi.mjs';
import { Server } from './server.mjs';

const modelName = 'builtin';

const messages = [{ role: 'user', content: 'Tell me about a little dog.' }];
const weather = {
  name: 'get_weather',
  description: 'The weather at a place.',
  input_schema: {
    type: 'object',
    properties: { place: { type: 'string', enum: ['Oslo', 'Rome'] }, days: { enum: [1, 2, 3] } },
    required: ['place', 'days'],
    additionalProperties: false,
  },
};

describe('Messages API', () => {
  let server;
  let client;

  before(async () => {
    server = await Server.startBuiltin('--api-key', 'sesame');
    client = new Anthropic({ baseURL: server.url, fetch: checkingFetch(server.url), apiKey: 'sesame', maxRetries: 0 });
  });
  after(async () => {
    assert.equal(await server?.stop(), 0, `exit code after SIGTERM; log:\n${server?.log}`);
  });

  const call = (fields) => ({ model: modelName, max_tokens: 24, messages, temperature: 0, ...fields });
  const create = (fields) => client.messages.create(call(fields));
  const textOf = (message) => message.content.map((block) => block.text ?? '').join('');

  const apiError = async (promise) => {
    const error = await promise.then(
      () => assert.fail('the call should have failed'),
      (caught) => caught,
    );
    assert.ok(error instanceof Anthropic.APIError, `${error}`);
    assert.equal(error.error.type, 'error');
    assert.ok(error.error.error.message.length > 10, error.message);
    assert.ok(error.requestID, 'an error has the id of its request');
    assert.equal(error.error.request_id, error.requestID);
    return error;
  };

  test('answers a message', async () => {
    const answer = await create({ system: 'Be brief.', metadata: { user_id: 'u' } });
    assert.match(answer.id, /^msg_/);
    assert.ok(answer._request_id);
    assert.equal(answer.type, 'message');
    assert.equal(answer.role, 'assistant');
    assert.equal(answer.model, modelName);
    assert.equal(answer.content.length, 1);
    assert.equal(answer.content[0].type, 'text');
    assert.ok(textOf(answer).length > 0);
    assert.ok(['end_turn', 'max_tokens'].includes(answer.stop_reason));
    assert.ok(answer.usage.input_tokens + answer.usage.cache_read_input_tokens > 5);
    assert.ok(answer.usage.output_tokens > 0);
  });

  test('stops at max_tokens and at the end of the context', async () => {
    const short = await create({ max_tokens: 3 });
    assert.deepEqual([short.stop_reason, short.usage.output_tokens], ['max_tokens', 3]);
    const long = 'The dog ran. '.repeat(100);
    const full = await create({ messages: [{ role: 'user', content: long }], max_tokens: 20_000, temperature: 1 });
    assert.ok(['end_turn', 'model_context_window_exceeded'].includes(full.stop_reason), full.stop_reason);
  });

  test('ends at a stop sequence', async () => {
    const free = textOf(await create({ max_tokens: 40 }));
    const stop = free.slice(20, 26);
    const stopped = await create({ max_tokens: 40, stop_sequences: ['never to be seen', stop] });
    assert.equal(stopped.stop_reason, 'stop_sequence');
    assert.equal(stopped.stop_sequence, stop);
    assert.equal(textOf(stopped), free.slice(0, free.indexOf(stop)));
  });

  test('counts tokens as they will be', async () => {
    const asked = { model: modelName, messages, system: [{ type: 'text', text: 'Be kind.' }], tools: [weather] };
    const { input_tokens: counted } = await client.messages.countTokens(asked);
    const { usage } = await client.messages.create({ ...asked, max_tokens: 1 });
    assert.equal(counted, usage.input_tokens + usage.cache_read_input_tokens);
    const again = (await client.messages.create({ ...asked, max_tokens: 1 })).usage;
    assert.equal(counted, again.input_tokens + again.cache_read_input_tokens);
  });

  test('streams the same text', async () => {
    const whole = await create({});
    const stream = client.messages.stream(call({}));
    let text = '';
    stream.on('text', (delta) => (text += delta));
    const types = [];
    stream.on('streamEvent', (event) => types.push(event.type));
    const final = await stream.finalMessage();
    assert.equal(text, textOf(whole));
    assert.deepEqual(final.content, whole.content);
    assert.equal(final.stop_reason, whole.stop_reason);
    assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
    assert.deepEqual([...new Set(types)], [
      'message_start', 'content_block_start', 'content_block_delta', 'content_block_stop', 'message_delta', 'message_stop',
    ]);
    assert.ok(types.filter((type) => type === 'content_block_delta').length > 5, 'text arrives in pieces');
    assert.ok(stream.request_id);
  });

  test('goes on with an answer that was begun', async () => {
    const begun = 'Once upon a time, there was a little';
    const prefilled = [...messages, { role: 'assistant', content: begun }];
    const answer = await create({ messages: prefilled });
    assert.ok(!textOf(answer).startsWith('Once upon'), textOf(answer));
    const { input_tokens: longer } = await client.messages.countTokens({ model: modelName, messages: prefilled });
    const { input_tokens: plain } = await client.messages.countTokens({ model: modelName, messages });
    assert.ok(longer > plain);
  });

  test('uses a tool, and takes its result', async () => {
    const asked = { tools: [weather], max_tokens: 120, temperature: 1 };
    const answer = await create({ ...asked, tool_choice: { type: 'any', disable_parallel_tool_use: true } });
    assert.equal(answer.stop_reason, 'tool_use', JSON.stringify(answer.content));
    const uses = answer.content.filter((block) => block.type === 'tool_use');
    assert.equal(uses.length, 1);
    const [use] = uses;
    assert.equal(use.name, 'get_weather');
    assert.match(use.id, /^toolu_/);
    assert.ok(['Oslo', 'Rome'].includes(use.input.place) && [1, 2, 3].includes(use.input.days), JSON.stringify(use));

    const next = await create({
      ...asked,
      max_tokens: 8,
      tool_choice: { type: 'none' },
      messages: [
        ...messages,
        { role: 'assistant', content: answer.content },
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content: 'sunny' }, { type: 'text', text: 'So?' }] },
      ],
    });
    assert.notEqual(next.stop_reason, 'tool_use');
  });

  test('streams the use of a tool', async () => {
    const stream = client.messages.stream(
      call({ tools: [weather], tool_choice: { type: 'tool', name: 'get_weather', disable_parallel_tool_use: true }, max_tokens: 120, temperature: 1 }),
    );
    let json = '';
    stream.on('inputJson', (partial) => (json += partial));
    const final = await stream.finalMessage();
    const use = final.content.at(-1);
    assert.equal(use.type, 'tool_use');
    assert.deepEqual(use.input, JSON.parse(json));
    assert.ok(['Oslo', 'Rome'].includes(use.input.place), json);
    assert.equal(final.stop_reason, 'tool_use');
  });

  test('writes JSON of a schema', async () => {
    const schema = { type: 'object', properties: { age: { enum: [3, 4] } }, required: ['age'], additionalProperties: false };
    const answer = await create({ max_tokens: 600, temperature: 1, output_config: { format: { type: 'json_schema', schema } } });
    assert.ok([3, 4].includes(JSON.parse(textOf(answer)).age), textOf(answer));
  });

  test('says what is wrong with a request', async () => {
    for (const [fields, path] of [
      [{ max_tokens: 0 }, 'max_tokens'],
      [{ temperature: 'hot' }, 'temperature'],
      [{ thinking: { type: 'enabled', budget_tokens: 1024 } }, 'thinking.type'],
      [{ messages: [] }, 'messages'],
      [{ messages: [{ role: 'user', content: [{ type: 'image', source: {} }] }] }, 'messages.0.content.0.type'],
      [{ messages: [{ role: 'user', content: [{ type: 'tool_result', tool_use_id: 't' }] }] }, 'messages.0.content.0.tool_use_id'],
      [{ tools: [{ type: 'web_search_20250305', name: 'web_search' }] }, 'tools.0.type'],
      [{ system: 5 }, 'system'],
    ]) {
      const error = await apiError(create(fields));
      assert.ok(error instanceof Anthropic.BadRequestError, error.message);
      assert.equal(error.type, 'invalid_request_error');
      assert.ok(error.apiMessage.includes(path), error.message);
    }
    const unknown = await apiError(create({ model: 'claude' }));
    assert.deepEqual([unknown.status, unknown.type], [404, 'not_found_error']);
    const tooLong = await apiError(create({ messages: [{ role: 'user', content: 'The dog ran. '.repeat(2000) }] }));
    assert.deepEqual([tooLong.status, tooLong.type], [400, 'invalid_request_error']);
    const stranger = new Anthropic({ baseURL: server.url, apiKey: 'guess', maxRetries: 0 });
    assert.ok((await apiError(stranger.messages.create(call({})))) instanceof Anthropic.AuthenticationError);
    const bearer = new Anthropic({ baseURL: server.url, apiKey: null, authToken: 'sesame', maxRetries: 0 });
    assert.equal((await bearer.messages.create(call({ max_tokens: 1 }))).type, 'message');
  });

  test('lists its model', async () => {
    const models = [];
    for await (const model of client.models.list()) models.push(model);
    assert.deepEqual(models.map((model) => [model.id, model.type]), [[modelName, 'model']]);
    assert.equal((await client.models.retrieve(modelName)).display_name, modelName);
  });
});
