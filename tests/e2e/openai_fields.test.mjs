// Fields of OpenAI's API through its SDK: choices, logprobs, biases, structured output, tools,
// embeddings, tokens.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import OpenAI from 'openai';
import { checkingFetch } from './openapi.mjs';
import { Server } from './server.mjs';

const modelName = 'builtin';

const prompt = 'Once upon a time there was a little girl';
const messages = [{ role: 'user', content: 'What is the weather in Oslo?' }];
const weather = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather of a city',
    parameters: {
      type: 'object',
      properties: { city: { enum: ['Oslo', 'Paris'] }, days: { type: 'integer', minimum: 1, maximum: 3 } },
      required: ['city', 'days'],
      additionalProperties: false,
    },
  },
};

describe('OpenAI SDK, all fields', () => {
  let server;
  let client;

  before(async () => {
    server = await Server.startBuiltin();
    client = new OpenAI({ baseURL: `${server.url}/v1`, fetch: checkingFetch(server.url), apiKey: 'none', maxRetries: 0 });
  });
  after(async () => {
    assert.equal(await server?.stop(), 0, `exit code after SIGTERM; log:\n${server?.log}`);
  });

  const complete = (fields) =>
    client.completions.create({ model: modelName, prompt, max_tokens: 8, temperature: 0, ...fields });
  const chat = (fields, options) =>
    client.chat.completions.create({ model: modelName, messages, max_tokens: 64, temperature: 0, ...fields }, options);
  const collect = async (stream) => {
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    return chunks;
  };
  const post = async (path, body) => {
    const response = await fetch(`${server.url}${path}`, { method: 'POST', body: JSON.stringify(body) });
    return { status: response.status, body: await response.json() };
  };
  const refusal = async (call) => {
    const error = await call.then(() => assert.fail('the call should have failed'), (caught) => caught);
    assert.ok(error instanceof OpenAI.APIError, `${error}`);
    return error;
  };

  test('several choices, each with its own seed', async () => {
    const answer = await complete({ n: 3, temperature: 1, seed: 5, max_tokens: 24 });
    assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1, 2]);
    assert.equal(new Set(answer.choices.map((choice) => choice.text)).size, 3);
    const second = await complete({ temperature: 1, seed: 6, max_tokens: 24 });
    assert.equal(answer.choices[1].text, second.choices[0].text, 'choice 1 of seed 5 is seed 6');
    assert.equal(answer.usage.prompt_tokens, second.usage.prompt_tokens);
    assert.equal(answer.usage.completion_tokens, 72);
    const chunks = await collect(await complete({ n: 3, temperature: 1, seed: 5, max_tokens: 24, stream: true }));
    for (const { index, text } of answer.choices) {
      const streamed = chunks.filter((chunk) => chunk.choices[0].index === index);
      assert.equal(streamed.map((chunk) => chunk.choices[0].text).join(''), text);
    }
  });

  test('logprobs of a chat', async () => {
    const whole = await chat({ logprobs: true, top_logprobs: 2, max_tokens: 6 });
    const { content } = whole.choices[0].logprobs;
    assert.equal(content.length, 6);
    for (const token of content) {
      assert.ok(token.logprob <= 0 && token.top_logprobs.length === 2);
      assert.equal(token.top_logprobs[0].logprob, token.logprob, 'greedy takes the likeliest');
    }
    const bytes = content.flatMap((token) => token.bytes ?? []);
    assert.equal(Buffer.from(bytes).toString().trim(), whole.choices[0].message.content.trim());
    const chunks = await collect(await chat({ logprobs: true, top_logprobs: 2, max_tokens: 6, stream: true }));
    assert.deepEqual(chunks.flatMap((chunk) => chunk.choices[0]?.logprobs?.content ?? []), content);
  });

  test('logprobs of a prompt, as evaluations ask for them', async () => {
    const answer = await complete({ echo: true, logprobs: 1, max_tokens: 1 });
    const { tokens, token_logprobs, top_logprobs, text_offset } = answer.choices[0].logprobs;
    assert.equal(tokens.length, answer.usage.prompt_tokens + 1);
    assert.equal(token_logprobs[0], null);
    assert.ok(token_logprobs.slice(1).every((logprob) => logprob <= 0));
    assert.equal(token_logprobs.at(-1), Math.max(...Object.values(top_logprobs.at(-1))));
    assert.ok(answer.choices[0].text.startsWith(prompt));
    assert.equal(text_offset.at(-1), prompt.length);
    const alone = await complete({ echo: true, logprobs: 1, max_tokens: 0 });
    assert.deepEqual(alone.choices[0].logprobs.token_logprobs, token_logprobs.slice(0, -1));
    assert.equal(alone.choices[0].text, prompt);
  });

  test('rules for single tokens', async () => {
    const free = await complete({ return_token_ids: true });
    const [first] = free.choices[0].token_ids;
    const banned = await complete({ logit_bias: { [first]: -100 }, return_token_ids: true });
    assert.notEqual(banned.choices[0].token_ids[0], first);
    const only = await complete({ allowed_token_ids: [first], return_token_ids: true, ignore_eos: true });
    assert.deepEqual(new Set(only.choices[0].token_ids), new Set([first]));
    const text = free.choices[0].text.trim().split(' ')[1];
    const without = await complete({ bad_words: [text], max_tokens: 30 });
    assert.ok(!without.choices[0].text.includes(` ${text} `));
    const repeated = await complete({ max_tokens: 60, frequency_penalty: 2, presence_penalty: 2 });
    assert.notEqual(repeated.choices[0].text, (await complete({ max_tokens: 60 })).choices[0].text);
    assert.equal((await refusal(complete({ logit_bias: { 9999999: 1 } }))).param, 'logit_bias');
  });

  const parsed = (choice) => {
    assert.equal(choice.finish_reason, 'stop', choice.message.content);
    return JSON.parse(choice.message.content);
  };

  test('structured output', async () => {
    const schema = weather.function.parameters;
    const response_format = { type: 'json_schema', json_schema: { name: 'w', strict: true, schema } };
    for (const seed of [1, 2, 3]) {
      const found = parsed((await chat({ response_format, temperature: 1, seed, max_tokens: 400 })).choices[0]);
      assert.ok(['Oslo', 'Paris'].includes(found.city) && found.days >= 1 && found.days <= 3);
    }
    const chosen = await complete({ structured_outputs: { choice: ['yes', 'no'] } });
    assert.ok(['yes', 'no'].includes(chosen.choices[0].text));
    const matched = await complete({ guided_regex: '[a-c]{3}-[0-9]{2}' });
    assert.match(matched.choices[0].text, /^[a-c]{3}-[0-9]{2}$/);
    const bad = await refusal(chat({
      response_format: { type: 'json_schema', json_schema: { name: 'a', schema: { type: 'nothing' } } },
    }));
    assert.deepEqual([bad.status, bad.param], [400, 'response_format']);
  });

  test('tools that must be called', async () => {
    for (const tool_choice of ['required', { type: 'function', function: { name: 'get_weather' } }]) {
      const call = { tools: [weather], tool_choice, parallel_tool_calls: false, max_tokens: 400, temperature: 1, seed: 4 };
      const [choice] = (await chat(call)).choices;
      assert.equal(choice.finish_reason, 'tool_calls', JSON.stringify(choice));
      const [{ id, type, function: called }] = choice.message.tool_calls;
      assert.match(id, /^call_/);
      assert.deepEqual([type, called.name], ['function', 'get_weather']);
      assert.ok(['Oslo', 'Paris'].includes(JSON.parse(called.arguments).city));

      const runner = client.chat.completions.stream({ model: modelName, messages, ...call });
      const final = (await runner.finalChatCompletion()).choices[0];
      assert.equal(final.finish_reason, 'tool_calls');
      assert.equal(final.message.tool_calls[0].function.arguments, called.arguments);
    }
    const answered = await chat({
      messages: [
        ...messages,
        { role: 'assistant', content: null, tool_calls: [{ id: 'a', type: 'function', function: { name: 'get_weather', arguments: '{}' } }] },
        { role: 'tool', tool_call_id: 'a', content: 'rain' },
      ],
    });
    assert.ok(answered.choices[0].message.content.length > 0);
    const orphan = await refusal(chat({ messages: [...messages, { role: 'tool', tool_call_id: 'b', content: 'x' }] }));
    assert.deepEqual([orphan.status, orphan.param], [400, 'messages']);
  });

  test('embeddings', async () => {
    const embed = (input, fields) => client.embeddings.create({ model: modelName, input, ...fields });
    const both = await embed(['A dog ran.', 'The sun is hot.'], { encoding_format: 'float' });
    assert.deepEqual(both.data.map((entry) => entry.index), [0, 1]);
    for (const { embedding } of both.data) {
      assert.ok(Math.abs(Math.hypot(...embedding) - 1) < 1e-4, 'unit length');
    }
    const decoded = await embed('A dog ran.'); // the SDK asks for base64 and decodes it
    decoded.data[0].embedding.forEach((value, i) => assert.ok(Math.abs(value - both.data[0].embedding[i]) < 1e-6));
    assert.equal((await refusal(embed('a', { dimensions: 7 }))).param, 'dimensions');
    assert.equal((await refusal(embed(''))).status, 400);
  });

  test('tokens and back', async () => {
    const { body } = await post('/tokenize', { prompt, return_token_strs: true });
    assert.equal(body.count, body.tokens.length);
    assert.equal(body.token_strs.length, body.count);
    const plain = await post('/tokenize', { content: prompt });
    const text = await post('/detokenize', { tokens: plain.body.tokens });
    assert.equal(text.body.content.trim(), prompt);
    assert.equal((await post('/tokenize', { messages })).status, 200);
    const long = await post('/tokenize', { prompt: 'a dog '.repeat(50_000) });
    assert.ok(long.body.count > 50_000, 'longer than any context, tokenised aside');
    assert.equal((await post('/detokenize', { tokens: [1e9] })).status, 400);
  });

  test('time runs out', async () => {
    const late = await refusal(complete({ max_tokens: 480, ignore_eos: true, timeout: 0.001 }));
    assert.deepEqual([late.status, late.code], [504, 'timeout']);
    const bad = await refusal(chat({}, { headers: { 'x-slo-ttft-ms': 'soon' } }));
    assert.deepEqual([bad.status, bad.param], [400, 'x-slo-ttft-ms']);
    assert.equal((await chat({ max_tokens: 2 }, { headers: { 'x-slo-ttft-ms': '60000' } })).choices.length, 1);
  });

  test('refuses what it does not do', async () => {
    for (const [param, value] of [['functions', [{ name: 'f' }]], ['audio', {}], ['chat_template', 'x'], ['best_of', 4]]) {
      const error = await refusal(chat({ [param]: value }));
      assert.deepEqual([error.status, error.param], [400, param]);
    }
    assert.equal((await refusal(chat({ messages: [{ role: 'robot', content: 'x' }] }))).param, 'messages');
  });
});
