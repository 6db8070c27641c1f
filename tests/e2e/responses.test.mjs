// OpenAI's Responses API as its SDK sees it.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import OpenAI from 'openai';
import { checkingFetch } from './openapi.mjs';
import { Server } from './server.mjs';

const modelName = 'builtin';

const input = 'Tell me about a little dog.';
const weather = {
  type: 'function',
  name: 'get_weather',
  description: 'The weather at a place.',
  strict: true,
  parameters: {
    type: 'object',
    properties: { place: { type: 'string', enum: ['Oslo', 'Rome'] }, days: { enum: [1, 2, 3] } },
    required: ['place', 'days'],
    additionalProperties: false,
  },
};

describe('Responses API', () => {
  let server;
  let client;

  before(async () => {
    server = await Server.startBuiltin('--api-key', 'sesame');
    client = new OpenAI({ baseURL: `${server.url}/v1`, fetch: checkingFetch(server.url), apiKey: 'sesame', maxRetries: 0 });
  });
  after(async () => {
    assert.equal(await server?.stop(), 0, `exit code after SIGTERM; log:\n${server?.log}`);
  });

  const create = (fields) =>
    client.responses.create({ model: modelName, input, max_output_tokens: 24, temperature: 0, ...fields });

  const apiError = async (call) => {
    const error = await call.then(
      () => assert.fail('the call should have failed'),
      (caught) => caught,
    );
    assert.ok(error instanceof OpenAI.APIError, `${error}`);
    assert.ok(error.error.message.length > 10, error.error.message);
    return error;
  };

  const collect = async (stream) => {
    const events = [];
    for await (const event of stream) events.push(event);
    return events;
  };

  test('answers a text', async () => {
    const answer = await create({ metadata: { who: 'me' }, instructions: 'Be brief.' });
    assert.match(answer.id, /^resp_/);
    assert.equal(answer.object, 'response');
    assert.equal(answer.model, modelName);
    assert.ok(Math.abs(answer.created_at - Date.now() / 1000) < 60);
    assert.ok(['completed', 'incomplete'].includes(answer.status));
    assert.ok(answer.output_text.length > 0);
    assert.equal(answer.output_text, answer.output[0].content[0].text);
    assert.deepEqual(answer.metadata, { who: 'me' });
    assert.equal(answer.instructions, 'Be brief.');
    assert.equal(answer.max_output_tokens, 24);
    assert.equal(answer.error, null);
    assert.deepEqual(answer.tools, []);
    assert.ok(answer.usage.input_tokens > 5);
    assert.equal(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens);
    assert.equal(answer.usage.output_tokens_details.reasoning_tokens, 0);
  });

  test('is incomplete when cut off', async () => {
    const answer = await create({ max_output_tokens: 3 });
    assert.equal(answer.status, 'incomplete');
    assert.deepEqual(answer.incomplete_details, { reason: 'max_output_tokens' });
    assert.equal(answer.output[0].status, 'incomplete');
    assert.equal(answer.usage.output_tokens, 3);
  });

  test('counts tokens found in the cache', async () => {
    const long = 'The little dog ran to the big tree and the cat ran to the house. '.repeat(8);
    await create({ input: long, max_output_tokens: 1 });
    const again = await create({ input: long, max_output_tokens: 1 });
    const { cached_tokens: cached } = again.usage.input_tokens_details;
    assert.ok(cached > 0 && cached < again.usage.input_tokens, `${cached}`);
  });

  test('streams the same text as named, numbered events', async () => {
    const whole = await create({});
    const events = await collect(await create({ stream: true }));
    assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, i) => i));
    const types = events.map((event) => event.type);
    const deltas = types.filter((type) => type === 'response.output_text.delta').length;
    assert.ok(deltas > 5, 'text arrives in pieces');
    assert.deepEqual([...new Set(types)], [
      'response.created',
      'response.in_progress',
      'response.output_item.added',
      'response.content_part.added',
      'response.output_text.delta',
      'response.output_text.done',
      'response.content_part.done',
      'response.output_item.done',
      `response.${whole.status}`,
    ]);
    const last = events.at(-1).response;
    assert.equal(last.output[0].content[0].text, whole.output_text);
    assert.deepEqual(last.usage.total_tokens, whole.usage.total_tokens);
  });

  test('is put together by the SDK as it was sent', async () => {
    const whole = await create({});
    let text = '';
    const stream = client.responses
      .stream({ model: modelName, input, max_output_tokens: 24, temperature: 0 })
      .on('response.output_text.delta', (event) => (text += event.delta));
    const final = await stream.finalResponse();
    assert.equal(text, whole.output_text);
    assert.equal(final.output_text, whole.output_text);
    assert.equal(final.status, whole.status);
  });

  test('carries a conversation in its input', async () => {
    const first = await create({});
    const second = await create({
      instructions: 'Be kind.',
      input: [
        { role: 'user', content: input },
        ...first.output,
        { role: 'user', content: [{ type: 'input_text', text: 'And then?' }] },
      ],
    });
    assert.ok(second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens);
    assert.ok(second.output_text.length > 0);
  });

  test('calls a function, and takes its output', async () => {
    const asked = { tools: [weather], tool_choice: 'required', max_output_tokens: 120, temperature: 1 };
    const answer = await create({ ...asked, parallel_tool_calls: false });
    assert.equal(answer.status, 'completed', JSON.stringify(answer.output));
    const call = answer.output.find((item) => item.type === 'function_call');
    assert.equal(call.name, 'get_weather');
    assert.match(call.call_id, /^call_/);
    const given = JSON.parse(call.arguments);
    assert.ok(['Oslo', 'Rome'].includes(given.place) && [1, 2, 3].includes(given.days), call.arguments);

    const next = await create({
      tools: [weather],
      tool_choice: 'none',
      input: [
        { role: 'user', content: input },
        ...answer.output,
        { type: 'function_call_output', call_id: call.call_id, output: 'sunny' },
      ],
    });
    assert.ok(next.output.every((item) => item.type === 'message'));
  });

  test('streams a function call', async () => {
    const stream = client.responses.stream({
      model: modelName, input, tools: [weather], tool_choice: { type: 'function', name: 'get_weather' },
      parallel_tool_calls: false, max_output_tokens: 120, temperature: 1,
    });
    const events = await collect(stream);
    const types = events.map((event) => event.type).filter((type, i, all) => type !== all[i - 1]);
    assert.deepEqual(types.slice(-5), [
      'response.output_item.added',
      'response.function_call_arguments.delta',
      'response.function_call_arguments.done',
      'response.output_item.done',
      'response.completed',
    ]);
    const done = events.find((event) => event.type === 'response.function_call_arguments.done');
    const deltas = events.filter((event) => event.type === 'response.function_call_arguments.delta');
    assert.equal(deltas.map((event) => event.delta).join(''), done.arguments);
    assert.ok(['Oslo', 'Rome'].includes(JSON.parse(done.arguments).place));
    const final = await stream.finalResponse();
    assert.equal(final.output.at(-1).arguments, done.arguments);
  });

  test('writes JSON of a schema', async () => {
    const schema = {
      type: 'object',
      properties: { name: { enum: ['Tim', 'Sue'] }, age: { enum: [3, 4] } },
      required: ['name', 'age'],
      additionalProperties: false,
    };
    const answer = await create({
      max_output_tokens: 800, temperature: 1, text: { format: { type: 'json_schema', name: 'child', schema, strict: true } },
    });
    assert.equal(answer.status, 'completed', answer.output_text);
    const child = JSON.parse(answer.output_text);
    assert.ok(['Tim', 'Sue'].includes(child.name) && [3, 4].includes(child.age), answer.output_text);
  });

  test('tells log probabilities', async () => {
    const fields = { include: ['message.output_text.logprobs'], top_logprobs: 2, max_output_tokens: 6 };
    const answer = await create(fields);
    const part = answer.output[0].content[0];
    assert.equal(part.logprobs.map((token) => token.token).join(''), part.text);
    assert.ok(part.logprobs.every((token) => token.logprob <= 0 && token.top_logprobs.length === 2));
    const events = await collect(await create({ ...fields, stream: true }));
    const streamed = events
      .filter((event) => event.type === 'response.output_text.delta')
      .flatMap((event) => event.logprobs);
    assert.deepEqual(streamed.map((token) => token.token), part.logprobs.map((token) => token.token));
  });

  test('says what is wrong with a request', async () => {
    for (const [fields, param] of [
      [{ temperature: 'hot' }, 'temperature'],
      [{ max_output_tokens: 0 }, 'max_output_tokens'],
      [{ previous_response_id: 'resp_1' }, 'previous_response_id'],
      [{ background: true }, 'background'],
      [{ tools: [{ type: 'web_search' }] }, 'tools[0].type'],
      [{ input: [{ role: 'user', content: [{ type: 'input_image', image_url: 'x' }] }] }, 'input[0].content[0].type'],
      [{ input: [{ type: 'function_call_output', call_id: 'c', output: 'x' }] }, 'input[0].call_id'],
    ]) {
      const error = await apiError(create(fields));
      assert.deepEqual([error.status, error.param, error.type], [400, param, 'invalid_request_error'], error.message);
    }
    assert.equal((await apiError(create({ model: 'gpt-4' }))).code, 'model_not_found');
    assert.equal((await apiError(client.responses.retrieve('resp_1'))).status, 404);
    await assert.rejects(
      new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'guess', maxRetries: 0 }).responses.create({ model: modelName, input }),
      OpenAI.AuthenticationError,
    );
  });
});
