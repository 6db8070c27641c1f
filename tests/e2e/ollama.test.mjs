// Ollama's SDK against the real server, and the bytes of its API.
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { Ollama } from 'ollama';
import { checkingFetch } from './openapi.mjs';
import { random, Server } from './server.mjs';

let server;
let ollama;

async function call(path, body, method = 'POST') {
  const response = await fetch(server.url + path, { method, body: body === undefined ? undefined : JSON.stringify(body) });
  return { status: response.status, type: response.headers.get('content-type'), text: await response.text() };
}
const lines = (text) => text.trimEnd().split('\n').map((line) => JSON.parse(line));
const user = (content) => [{ role: 'user', content }];
const greedy = { temperature: 0, num_predict: 12 };
const weather = { type: 'function', function: { name: 'get_weather', description: 'Weather of a city',
  parameters: { type: 'object', properties: { city: { type: 'string', enum: ['Oslo', 'Rome'] } }, required: ['city'], additionalProperties: false } } };

describe("Ollama's API", () => {
  before(async () => {
    server = await Server.startBuiltin('--tool-call-parser', 'hermes');
    ollama = new Ollama({ host: server.url, fetch: checkingFetch(server.url) });
  });
  after(() => server.stop());

  it('chats like /v1/chat/completions, whole and streamed', async () => {
    const messages = [{ role: 'system', content: 'Tell stories.' }, ...user('Tell me of a cat.')];
    const openai = await call('/v1/chat/completions', { messages, temperature: 0, max_tokens: 12 });
    const text = JSON.parse(openai.text).choices[0].message.content;
    const whole = await ollama.chat({ model: 'builtin', messages, options: greedy });
    assert.equal(whole.message.content, text);
    assert.equal(whole.message.role, 'assistant');
    assert.equal(whole.done, true);
    assert.equal(whole.done_reason, 'length');
    assert.equal(whole.eval_count, 12);
    assert.equal(whole.prompt_eval_count, JSON.parse(openai.text).usage.prompt_tokens);
    assert.ok(whole.total_duration >= whole.eval_duration && whole.eval_duration > 0 && whole.prompt_eval_duration > 0);
    assert.ok(!Number.isNaN(Date.parse(whole.created_at)));
    let streamed = '';
    let last;
    for await (const part of await ollama.chat({ model: 'builtin:latest', messages, options: greedy, stream: true })) {
      streamed += part.message.content;
      last = part;
    }
    assert.equal(streamed, text);
    assert.equal(last.done_reason, 'length');
    assert.equal(last.eval_count, 12);
  });

  it('streams lines of JSON unless it is told not to', async () => {
    const streamed = await call('/api/chat', { model: 'builtin', messages: user('Hi'), options: greedy });
    assert.equal(streamed.type, 'application/x-ndjson');
    const parts = lines(streamed.text);
    assert.ok(parts.length > 3);
    assert.ok(parts.slice(0, -1).every(({ done, message }) => done === false && typeof message.content === 'string'));
    assert.equal(parts.at(-1).done, true);
    const whole = await call('/api/chat', { model: 'builtin', messages: user('Hi'), options: greedy, stream: false });
    assert.match(whole.type, /^application\/json/);
    assert.equal(JSON.parse(whole.text).message.content, parts.map(({ message }) => message.content).join(''));
  });

  it('answers a prompt as a message, and continues it if it is raw', async () => {
    const chat = await ollama.chat({ model: 'builtin', messages: [{ role: 'system', content: 'S' }, ...user('Tell me of a dog.')], options: greedy });
    const generated = await ollama.generate({ model: 'builtin', system: 'S', prompt: 'Tell me of a dog.', options: greedy });
    assert.equal(generated.response, chat.message.content);
    const raw = await ollama.generate({ model: 'builtin', prompt: 'Once upon a time', raw: true, options: greedy });
    const completion = await call('/v1/completions', { prompt: 'Once upon a time', temperature: 0, max_tokens: 12 });
    assert.equal(raw.response, JSON.parse(completion.text).choices[0].text);
    // The SDK and other clients also send the fields that they do not use.
    const padded = await call('/api/generate', { model: 'builtin', prompt: 'Once', suffix: '', template: '', images: null, context: [], think: false, keep_alive: '5m',
      options: { ...greedy, num_ctx: 8192, num_gpu: 99, num_thread: 4, mirostat: 0 } });
    assert.equal(padded.status, 200);
  });

  it('obeys options: seeds, stop strings, lengths', async () => {
    const say = (options) => ollama.generate({ model: 'builtin', prompt: 'A story.', options });
    const draw = { temperature: 1.5, num_predict: 16, top_k: 50, top_p: 0.95, repeat_penalty: 1.1 };
    assert.equal((await say({ ...draw, seed: 7 })).response, (await say({ ...draw, seed: 7 })).response);
    assert.notEqual((await say({ ...draw, seed: 7 })).response, (await say({ ...draw, seed: 8 })).response);
    const whole = await say({ temperature: 0, num_predict: 40 });
    const word = whole.response.split(' ')[3];
    const stopped = await say({ temperature: 0, num_predict: 40, stop: [word] });
    assert.equal(stopped.response, whole.response.slice(0, whole.response.indexOf(word)));
    assert.equal(stopped.done_reason, 'stop');
    assert.ok((await say({ temperature: 0, num_predict: -1, stop: ['.'] })).eval_count > 0);
  });

  it('gives JSON, of a schema too', async () => {
    const schema = { type: 'object', properties: { age: { type: 'integer', minimum: 1, maximum: 9 }, kind: { enum: ['cat', 'dog'] } },
      required: ['age', 'kind'], additionalProperties: false };
    const { message } = await ollama.chat({ model: 'builtin', messages: user('Describe a pet.'), format: schema, options: { temperature: 0 } });
    const pet = JSON.parse(message.content);
    assert.ok(pet.age >= 1 && pet.age <= 9 && ['cat', 'dog'].includes(pet.kind));
    const { response } = await ollama.generate({ model: 'builtin', prompt: 'A pet.', format: 'json', options: { temperature: 0, num_predict: 200 } });
    assert.ok(response.startsWith('{'));
  });

  it('calls tools, and reads calls and results without ids', async () => {
    const ask = { model: 'builtin', messages: user('Weather in Oslo?'), tools: [weather], tool_choice: { type: 'function', function: { name: 'get_weather' } }, options: { temperature: 0 } };
    const whole = JSON.parse((await call('/api/chat', { ...ask, stream: false })).text);
    const [made] = whole.message.tool_calls;
    assert.equal(made.function.name, 'get_weather');
    assert.ok(['Oslo', 'Rome'].includes(made.function.arguments.city));  // an object
    const calls = lines((await call('/api/chat', ask)).text).flatMap(({ message }) => message.tool_calls ?? []);
    assert.deepEqual(calls.map((each) => each.function), whole.message.tool_calls.map((each) => each.function));
    const answered = await ollama.chat({ model: 'builtin', tools: [weather], options: greedy, messages: [...ask.messages,
      { role: 'assistant', content: '', tool_calls: [{ function: made.function }] }, { role: 'tool', tool_name: 'get_weather', content: 'Sunny.' }] });
    assert.equal(answered.message.role, 'assistant');
  });

  it('embeds texts as /v1/embeddings does', async () => {
    const { embeddings, prompt_eval_count: tokens } = await ollama.embed({ model: 'builtin', input: ['A cat.', 'A dog.'] });
    const openai = JSON.parse((await call('/v1/embeddings', { input: ['A cat.', 'A dog.'] })).text);
    assert.deepEqual(embeddings, openai.data.map(({ embedding }) => embedding));
    assert.equal(tokens, openai.usage.prompt_tokens);
    const { embedding } = await ollama.embeddings({ model: 'builtin', prompt: 'A cat.' });
    const length = Math.hypot(...embedding);
    assert.ok(embedding.every((value, i) => Math.abs(value / length - embeddings[0][i]) < 1e-4));
  });

  it('tells what is served', async () => {
    const { models: [listed] } = await ollama.list();
    assert.equal(listed.name, 'builtin:latest');
    assert.match(listed.digest, /^[0-9a-f]{64}$/);
    assert.equal(listed.details.parameter_size, '12.9M');
    const { models: [running] } = await ollama.ps();
    assert.equal(running.name, 'builtin:latest');
    assert.equal(running.digest, listed.digest);
    const shown = await ollama.show({ model: 'builtin' });
    assert.deepEqual(shown.capabilities, ['completion', 'tools', 'embedding']);
    assert.ok(shown.model_info[`${shown.details.family}.context_length`] > 0);
    assert.match((await ollama.version()).version, /^\d+\.\d+\.\d+$/);
    assert.equal((await ollama.pull({ model: 'builtin' })).status, 'success');
    assert.equal((await call('/', undefined, 'GET')).status, 200);
    assert.equal((await call('/', undefined, 'HEAD')).status, 200);
  });

  it('answers calls that only load or unload the model', async () => {
    assert.equal(JSON.parse((await call('/api/generate', { model: 'builtin' })).text).done_reason, 'load');
    assert.equal(JSON.parse((await call('/api/generate', { model: 'builtin', keep_alive: 0 })).text).done_reason, 'unload');
    const loaded = JSON.parse((await call('/api/chat', { model: 'builtin', messages: [] })).text);
    assert.deepEqual([loaded.done, loaded.done_reason, loaded.message], [true, 'load', { role: 'assistant', content: '' }]);
  });

  it('says what is wrong in the way that its clients read', async () => {
    for (const [path, body, status, pattern] of [
      ['/api/chat', { model: 'llama3', messages: user('Hi') }, 404, /the model "llama3" does not exist here/],
      ['/api/generate', { model: 'llama3', keep_alive: 0 }, 404, /the model "llama3" does not exist here/],
      ['/api/chat', { model: 'llama3', messages: [] }, 404, /the model "llama3" does not exist here/],
      ['/api/generate', { model: 5 }, 400, /model must be a string/],
      ['/api/copy', { source: 'builtin', destination: 'b' }, 404, /there is nothing at \/api\/copy/],
      ['/api/pull', { model: 'llama3' }, 404, /llama3/],
      ['/api/show', { model: 'llama3' }, 404, /llama3/],
      ['/api/chat', { messages: [{ role: 'user', content: 'Look', images: ['aGk='] }] }, 400, /messages\[0\]\.images: this model reads text only/],
      ['/api/chat', { messages: user('Hi'), think: true }, 400, /think is not supported/],
      ['/api/chat', { messages: user('Hi'), options: { mirostat: 2 } }, 400, /options\.mirostat is not supported/],
      ['/api/chat', { messages: user('Hi'), options: { temperature: 'hot' } }, 400, /options\.temperature must be a number/],
      ['/api/chat', { messages: user('Hi'), options: { num_predict: 0 } }, 400, /options\.num_predict must be -1, -2 or at least 1/],
      ['/api/chat', { messages: user('Hi'), format: 'xml' }, 400, /format must be "json" or a JSON schema/],
      ['/api/chat', { messages: 'Hi' }, 400, /messages must be an array/],
      ['/api/chat', { messages: [{ role: 'tool', content: 'x' }] }, 400, /tool_call_id is missing/],
      ['/api/generate', { prompt: 'x', raw: true, system: 's' }, 400, /system and raw exclude each other/],
      ['/api/generate', { prompt: 'x', suffix: 'y' }, 400, /suffix is not supported/],
      ['/api/embed', { input: [[1, 2]] }, 400, /input must be a text or a list of texts/],
      ['/api/chat', [], 400, /must be a JSON object/],
    ]) {
      const answer = await call(path, body);
      assert.equal(answer.status, status, `${JSON.stringify(body)}: ${answer.text}`);
      const { error, ...rest } = JSON.parse(answer.text);
      assert.match(error, pattern);
      assert.deepEqual(rest, {});
    }
    await assert.rejects(ollama.chat({ model: 'llama3', messages: user('Hi') }), (error) => error.status_code === 404 && /llama3/.test(error.message));
  });

  it('asks for the key on all but the version', async () => {
    const locked = await Server.startBuiltin('--api-key', 'secret');
    const status = async (path, headers) => (await fetch(locked.url + path, { headers })).status;
    assert.equal(await status('/api/tags', {}), 401);
    assert.equal(await status('/api/tags', { authorization: 'Bearer secret' }), 200);
    assert.equal(await status('/api/version', {}), 200);
    await locked.stop();
  });

  it('keeps serving whatever is sent', async () => {
    const draw = random(3);
    const values = [null, '', 0, -1, 1e300, true, [], {}, [{}], 'x', { type: 'object' }, [{ role: 'user', content: 'a' }], [{ role: 'assistant', tool_calls: [{}] }]];
    const fields = ['model', 'messages', 'prompt', 'input', 'options', 'format', 'tools', 'stream', 'think', 'keep_alive', 'system', 'raw', 'images', 'context', 'truncate'];
    for (let i = 0; i < 200; ++i) {
      const path = ['/api/chat', '/api/generate', '/api/embed', '/api/embeddings', '/api/show', '/api/pull'][draw(6)];
      const body = Object.fromEntries(fields.filter(() => draw(3) === 0).map((field) => [field, values[draw(values.length)]]));
      body.options ??= { num_predict: 1 };
      const { status, text } = await call(path, body);
      assert.ok(status === 200 || (status >= 400 && status < 500), `${path} ${JSON.stringify(body)}: ${status} ${text}`);
    }
    assert.equal((await ollama.chat({ model: 'builtin', messages: user('Hi'), options: greedy })).done, true);
  });
});
