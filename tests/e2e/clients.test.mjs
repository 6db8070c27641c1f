// Vercel's AI SDK, LangChain, and llama-server's and rerankers' calls against the real server.

import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai';
import { cosineSimilarity, embedMany, generateText, jsonSchema, Output, stepCountIs, streamText, tool } from 'ai';
import { checkingFetch } from './openapi.mjs';
import { builtin, Server } from './server.mjs';

const prompt = 'Tell me about a little dog.';
const weather = {
  type: 'object',
  properties: { city: { type: 'string', enum: ['Oslo', 'Rome'] } },
  required: ['city'],
  additionalProperties: false,
};

describe('clients', () => {
  let server;
  let fetching;
  before(async () => {
    server = await Server.startBuiltin();
    fetching = checkingFetch(server.url);
  });
  after(async () => {
    assert.equal(await server?.stop(), 0, `exit code after SIGTERM; log:\n${server?.log}`);
  });
  const post = async (path, body) => {
    const response = await fetching(server.url + path, { method: 'POST', body: JSON.stringify(body) });
    return { status: response.status, body: await response.json() };
  };

  describe("Vercel's AI SDK", () => {
    let provider;
    let model;
    before(() => {
      provider = createOpenAICompatible({
        name: 'protean', baseURL: `${server.url}/v1`, fetch: fetching, includeUsage: true, supportsStructuredOutputs: true,
      });
      model = provider('builtin');
    });
    const asked = (fields) => ({ model, prompt, temperature: 0, maxOutputTokens: 24, maxRetries: 0, ...fields });

    test('streams what it generates, with usage', async () => {
      const whole = await generateText(asked());
      assert.ok(whole.text.length > 0);
      const stream = streamText(asked());
      let text = '';
      for await (const piece of stream.textStream) text += piece;
      assert.equal(text, whole.text);
      assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
      assert.equal(await stream.finishReason, whole.finishReason);
    });

    test('calls tools, whole and streamed', async () => {
      const cities = [];
      const tools = {
        get_weather: tool({
          description: 'The weather of a city', inputSchema: jsonSchema(weather),
          execute: async ({ city }) => { cities.push(city); return `rain in ${city}`; },
        }),
      };
      const call = asked({ tools, toolChoice: { type: 'tool', toolName: 'get_weather' }, maxOutputTokens: 200, stopWhen: stepCountIs(1) });
      const { toolCalls, toolResults } = await generateText(call);
      assert.equal(toolCalls[0].toolName, 'get_weather');
      assert.match(toolResults[0].output, /^rain in (Oslo|Rome)$/);
      assert.deepEqual((await streamText(call).toolCalls).map(({ input }) => input), toolCalls.map(({ input }) => input));
      assert.equal(cities.length, 2 * toolCalls.length);
    });

    test('writes JSON of a schema, and embeds', async () => {
      const { output } = await generateText(asked({ output: Output.object({ schema: jsonSchema(weather) }), maxOutputTokens: 100 }));
      assert.ok(['Oslo', 'Rome'].includes(output.city));
      const { embeddings } = await embedMany({ model: provider.textEmbeddingModel('builtin'), values: ['A dog ran.', 'A dog ran.'] });
      assert.ok(cosineSimilarity(...embeddings) > 0.9999);
    });
  });

  describe('LangChain', () => {
    const chat = (maxTokens) => new ChatOpenAI({
      model: 'builtin', apiKey: 'none', temperature: 0, maxTokens, maxRetries: 0,
      configuration: { baseURL: `${server.url}/v1`, fetch: fetching },
    });

    test('streams what it invokes', async () => {
      const whole = await chat(24).invoke(prompt);
      let text = '';
      for await (const chunk of await chat(24).stream(prompt)) text += chunk.content;
      assert.equal(text, whole.content);
      assert.equal(whole.usage_metadata.output_tokens, 24);
    });

    test('calls tools and writes JSON of a schema', async () => {
      const tools = [{ type: 'function', function: { name: 'get_weather', parameters: weather } }];
      const called = await chat(200).bindTools(tools, { tool_choice: 'get_weather' }).invoke(prompt);
      assert.equal(called.tool_calls[0].name, 'get_weather');
      assert.ok(['Oslo', 'Rome'].includes(called.tool_calls[0].args.city));
      const { city } = await chat(200).withStructuredOutput(weather, { name: 'weather', method: 'jsonSchema', strict: true }).invoke(prompt);
      assert.ok(['Oslo', 'Rome'].includes(city));
    });

    test('embeds', async () => {
      const embeddings = new OpenAIEmbeddings({
        model: 'builtin', apiKey: 'none', maxRetries: 0, configuration: { baseURL: `${server.url}/v1`, fetch: fetching },
      });
      assert.equal((await embeddings.embedDocuments(['a dog', 'a cat']))[1].length, 256);
    });
  });

  test('scores and reranks by the cosine of embeddings', async () => {
    const documents = ['The sun is hot.', 'The dog ran home.', 'A dog ran.'];
    const query = 'A dog ran.';
    const { data } = (await post('/v1/embeddings', { input: [query, ...documents] })).body;
    const expected = documents.map((_, i) => cosineSimilarity(data[0].embedding, data[i + 1].embedding));
    const scored = (await post('/v1/score', { model: 'builtin', text_1: query, text_2: documents })).body;
    scored.data.forEach(({ index, score }) => assert.ok(Math.abs(score - expected[index]) < 1e-5));
    assert.ok(scored.usage.total_tokens > 10);
    const ranked = (await post('/v1/rerank', { query, documents: [documents[0], { text: documents[1] }, documents[2]], top_n: 2 })).body;
    assert.deepEqual(ranked.results.map(({ index }) => index), [2, 1]);
    assert.ok(ranked.results[0].relevance_score > 0.9999);
    assert.equal(ranked.results[1].document.text, documents[1]);
    const bare = (await post('/rerank', { query, documents, return_documents: false })).body;
    assert.deepEqual(Object.keys(bare.results[0]), ['index', 'relevance_score']);
    assert.equal((await post('/v1/score', { text_1: ['a', 'b'], text_2: 'c' })).status, 400);
  });

  test('grammars hold completions and chats', async () => {
    const grammar = 'root ::= "pets: " pet (", " pet){1,2} # two or three\npet ::= ("cat" | "dog") [0-9]\n';
    const form = /^pets: (cat|dog)\d(, (cat|dog)\d){1,2}$/;
    const messages = [{ role: 'user', content: prompt }];
    for (const seed of [1, 2, 3]) {
      const completed = (await post('/v1/completions', { prompt, structured_outputs: { grammar }, max_tokens: 60, seed })).body;
      assert.match(completed.choices[0].text, form);
      const said = (await post('/v1/chat/completions', { messages, guided_grammar: grammar, seed })).body;
      assert.match(said.choices[0].message.content, form);
    }
    const wrong = await post('/v1/completions', { prompt, grammar: 'root ::= pet\npet ::= "cat' });
    assert.deepEqual([wrong.status, wrong.body.error.param], [400, 'grammar']);
    assert.match(wrong.body.error.message, /^grammar: line 2, column 9: /);
  });

  test("llama-server's clients find what they read", async () => {
    const get = async (path) => (await fetch(server.url + path)).json();
    const props = await get('/props');
    assert.ok(props.default_generation_settings.n_ctx > 100 && props.chat_template.length > 10 && props.total_slots > 0);
    assert.equal((await get('/slots')).at(-1).is_processing, false);
    assert.equal((await get('/props?model=other')).error.code, 'model_not_found');
    const call = { prompt, n_predict: 12, temperature: 0 };
    const openai = (await post('/v1/completions', { prompt, max_tokens: 12, temperature: 0 })).body.choices[0].text;
    const whole = (await post('/completion', { ...call, samplers: ['top_k'], cache_prompt: true })).body;
    assert.deepEqual([whole.content, whole.stop, whole.stop_type, whole.tokens_predicted], [openai, true, 'limit', 12]);
    const lists = { ...call, logit_bias: [] };
    assert.equal((await fetch(`${server.url}/completion`, { method: 'POST', body: JSON.stringify(lists) })).status, 200);
    const some = (await post('/completion', { ...call, response_fields: ['content', 'timings/predicted_n', 'none'] })).body;
    assert.deepEqual(some, { content: openai, 'timings/predicted_n': 12 });
    const streamed = await (await fetching(`${server.url}/completion`, { method: 'POST', body: JSON.stringify({ ...call, stream: true }) })).text();
    const events = streamed.trim().split('\n\n').map((event) => JSON.parse(event.slice('data: '.length)));
    assert.equal(events.map(({ content }) => content).join(''), openai);
    assert.deepEqual(events.map(({ stop }) => stop), [...events.slice(1).map(() => false), true]);
    const refused = await post('/infill', { input_prefix: 'a', input_suffix: 'b' });
    assert.match(refused.body.error.message, /no tokens for filling in the middle/);
    assert.equal((await post('/completion', { ...call, mirostat: 2 })).body.error.param, 'mirostat');
  });
});

// The built-in model with three of its special tokens renamed, as code models call them.
test('models with tokens for it fill in code', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'protean-infill-'));
  let server;
  try {
    cpSync(builtin, folder, { recursive: true });
    const file = join(folder, 'tokenizer.json');
    const names = { '<|system|>': '<|fim_prefix|>', '<|user|>': '<|fim_suffix|>', '<|assistant|>': '<|fim_middle|>' };
    writeFileSync(file, Object.entries(names).reduce((text, [from, to]) => text.replaceAll(from, to), readFileSync(file, 'utf8')));
    server = await Server.startWith({ path: folder });
    const fetching = checkingFetch(server.url);
    const post = async (path, body) =>
      (await fetching(server.url + path, { method: 'POST', body: JSON.stringify(body) })).json();
    const tokens = async (content) => (await post('/tokenize', { content, parse_special: false })).tokens;
    const prefix = 'Once there was a ';
    const suffix = ' who liked to play.';
    const prompt = [0, 2, ...(await tokens(prefix)), 3, ...(await tokens(suffix)), 4];
    const expected = await post('/v1/completions', { prompt, max_tokens: 10, temperature: 0 });
    const { content, tokens_evaluated } =
      await post('/infill', { input_prefix: prefix, input_suffix: suffix, input_extra: [], n_predict: 10, temperature: 0, n_indent: 4 });
    assert.deepEqual([content, tokens_evaluated], [expected.choices[0].text, prompt.length]);
    const completed = await post('/v1/completions', { prompt: prefix, suffix, max_tokens: 10, temperature: 0 });
    assert.equal(completed.choices[0].text, content);
    const generated = await post('/api/generate', { model: '', prompt: prefix, suffix, stream: false, options: { num_predict: 10, temperature: 0 } });
    assert.equal(generated.response, content);
    assert.equal((await post('/infill', { input_prefix: prefix, input_suffix: suffix, n_predict: 0 })).tokens_predicted, 0);
  } finally {
    await server?.stop();
    rmSync(folder, { recursive: true });
  }
});
