import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { defaults, requestBody, titleOf, type Message, type Run, type Settings } from '../src/chat/model';
import { addRun, streamAnswer } from '../src/chat/stream';
import type { Api } from '../src/ui/api';
import { labelText, precisionShares, sharesOf, storage, tintClass } from '../src/ui/precision';
import { EventParser } from '../src/ui/sse';

const settings = (change: Partial<Settings> = {}): Settings => ({ ...defaults, model: 'm', ...change });
const asked: Message[] = [{ id: '1', role: 'user', content: 'Hello' }];
const api = (body: string) => ({ call: () => Promise.resolve(new Response(body)) }) as unknown as Api;
const events = (...chunks: unknown[]) => chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join('') + 'data: [DONE]\n\n';

describe('precisions', () => {
  it('are read from labels', () => {
    assert.deepEqual(sharesOf('bf16:12+w4a8:4+embeddings:w8'), [{ precision: 'bf16', share: 0.75 }, { precision: 'w4a8', share: 0.25 }]);
    assert.deepEqual(sharesOf('nonsense'), []);
    assert.equal(labelText('bf16:16'), 'bf16');
    assert.equal(labelText('bf16:12.5+w4:3.5'), '12.5 layers bf16, 3.5 w4');
    assert.equal(labelText('bf16:16+embeddings:w8'), 'bf16, embeddings w8');
    assert.equal(storage('w8a7'), 'w8');
    assert.equal(tintClass('w4a8'), 'tint-w4');
    assert.equal(tintClass('fp4'), 'tint-other');
  });
});

describe('server-sent events', () => {
  it('may be cut anywhere', () => {
    const text = ': ping\n\nevent: state\ndata: {"a":1}\n\ndata: one\r\ndata: two\r\n\r\n';
    for (let size = 1; size <= text.length; ++size) {
      const parser = new EventParser();
      const found = [];
      for (let at = 0; at < text.length; at += size) found.push(...parser.push(text.slice(at, at + size)));
      assert.deepEqual(found, [{ event: 'state', data: '{"a":1}' }, { event: 'message', data: 'one\ntwo' }], `pieces of ${size}`);
    }
  });
});

describe('a call', () => {
  it('holds only what was set', () => {
    const body = requestBody(settings(), asked);
    assert.deepEqual(Object.keys(body), ['model', 'messages', 'stream', 'stream_options']);
    const full = requestBody(settings({ system: 'Be brief.', temperature: '0.5', topK: '40', stop: 'a\n\nb', format: 'json', logprobs: true, alternatives: '30' }), asked);
    assert.equal(full.temperature, 0.5);
    assert.equal(full.top_k, 40);
    assert.deepEqual(full.stop, ['a', 'b']);
    assert.equal(full.top_logprobs, 20);
    assert.deepEqual((full.messages as unknown[])[0], { role: 'system', content: 'Be brief.' });
  });
  it('is refused with the field that is wrong', () => {
    for (const [change, field] of [[{ temperature: 'hot' }, 'temperature'], [{ topP: '2' }, 'topP'], [{ maxTokens: '1.5' }, 'maxTokens'],
      [{ format: 'schema', schema: '{' }, 'schema'], [{ tools: '[' }, 'tools']] as [Partial<Settings>, string][]) {
      assert.throws(() => requestBody(settings(change), asked), (problem: { field: string }) => problem.field === field);
    }
  });
  it('sends tool calls and their results back', () => {
    const { messages } = requestBody(settings(), [...asked,
      { id: '2', role: 'assistant', content: '', calls: [{ id: 'c', name: 'f', arguments: '{}' }] }, { id: '3', role: 'tool', callId: 'c', content: '7' }]);
    assert.deepEqual((messages as unknown[]).slice(1), [
      { role: 'assistant', content: null, tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }] },
      { role: 'tool', tool_call_id: 'c', content: '7' }]);
  });
  it('has a title', () => {
    assert.equal(titleOf('  \n'), 'New chat');
    assert.equal(titleOf('One\nTwo'), 'One');
    assert.ok(titleOf('x'.repeat(100)).length <= 60);
  });
});

describe('an answer', () => {
  it('says how much of it was computed at which precision', () => {
    const shares = precisionShares([{ label: 'bf16:4', tokens: 30 }, { label: 'bf16:1+w4:3', tokens: 10 }]);
    assert.deepEqual(shares, [{ precision: 'bf16', share: 0.8125 }, { precision: 'w4', share: 0.1875 }]);
    assert.deepEqual(precisionShares([]), []);
  });
  it('knows which text was computed at which precision', () => {
    const runs: Run[] = [];
    addRun(runs, {}, { 'bf16:4': 2 }, 5);
    addRun(runs, { 'bf16:4': 2 }, { 'bf16:4': 3 }, 3);
    addRun(runs, { 'bf16:4': 3 }, { 'bf16:4': 3, 'w4:4': 1 }, 4);
    addRun(runs, { 'bf16:4': 3, 'w4:4': 1 }, { 'bf16:4': 4, 'w4:4': 1 }, 2);
    addRun(runs, { 'bf16:4': 4, 'w4:4': 1 }, { 'bf16:4': 4, 'w4:4': 1 }, 1);
    assert.deepEqual(runs, [{ label: 'bf16:4', tokens: 3, chars: 8 }, { label: 'w4:4', tokens: 1, chars: 4 }, { label: 'bf16:4', tokens: 1, chars: 3 }]);
  });
  it('grows from chunks, with calls, logprobs and counts', async () => {
    const said: Message = { id: 'a', role: 'assistant', content: '' };
    const usage = (tokens: number) => ({ prompt_tokens: 4, completion_tokens: tokens, output_tokens_by_precision: { 'bf16:2': tokens } });
    await streamAnswer(api(events(
      { choices: [{ delta: { content: 'Hel' }, logprobs: { content: [{ token: 'Hel', logprob: -0.5, top_logprobs: [{ token: 'He', logprob: -1 }] }] } }], usage: usage(1) },
      { choices: [{ delta: { content: 'lo', tool_calls: [{ index: 0, id: 'c', function: { name: 'f', arguments: '{"a"' } }] } }], usage: usage(2) },
      { choices: [{ delta: { tool_calls: [{ index: 0, function: { arguments: ':1}' } }] } }] },
      { choices: [{ delta: {}, finish_reason: 'tool_calls' }] }, { choices: [], usage: { ...usage(2), prompt_tokens_details: { cached_tokens: 3 } } },
    )), {}, said, () => {}, new AbortController().signal);
    assert.equal(said.content, 'Hello');
    assert.deepEqual(said.calls, [{ id: 'c', name: 'f', arguments: '{"a":1}' }]);
    assert.deepEqual(said.tokens, [{ text: 'Hel', logprob: -0.5, top: [{ text: 'He', logprob: -1 }] }]);
    assert.deepEqual(said.runs, [{ label: 'bf16:2', tokens: 2, chars: 5 }]);
    assert.equal(said.stats!.outputTokens, 2);
    assert.equal(said.stats!.cachedTokens, 3);
    assert.equal(said.stats!.finish, 'tool_calls');
  });
  it('fails in words if the stream ends early or has an error', async () => {
    const said = (): Message => ({ id: 'a', role: 'assistant', content: '' });
    const signal = new AbortController().signal;
    await assert.rejects(streamAnswer(api(events({ choices: [{ delta: { content: 'Hel' } }] })), {}, said(), () => {}, signal), /ended before the answer did/);
    await assert.rejects(streamAnswer(api(events({ error: { message: 'the server is shutting down' } })), {}, said(), () => {}, signal), /^Error: The server is shutting down\.$/);
  });
});
