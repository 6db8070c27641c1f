// Streams one answer and keeps count of its tokens, their precisions and its times.

import type { Api } from '../ui/api';
import { CallError, sentence } from '../ui/api';
import { readEvents } from '../ui/sse';
import type { Message, Run, Token } from './model';

interface Chunk {
  choices?: {
    delta?: { content?: string | null; tool_calls?: ToolDelta[] };
    finish_reason?: string | null;
    logprobs?: { content?: TokenJson[] } | null;
  }[];
  usage?: Usage | null;
  error?: { message: string };
}
interface ToolDelta {
  index: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}
interface TokenJson {
  token: string;
  logprob: number;
  top_logprobs?: { token: string; logprob: number }[];
}
interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number };
  output_tokens_by_precision?: Record<string, number>;
}

/** Adds the tokens that are new since `before` to the runs. They came with `chars` characters. */
export function addRun(runs: Run[], before: Record<string, number>, now: Record<string, number>, chars: number): void {
  let rest = chars;
  for (const [label, tokens] of Object.entries(now)) {
    const more = tokens - (before[label] ?? 0);
    if (more <= 0) continue;
    const last = runs[runs.length - 1];
    if (last?.label === label) {
      last.tokens += more;
      last.chars += rest;
    } else {
      runs.push({ label, tokens: more, chars: rest });
    }
    rest = 0;
  }
  if (rest > 0 && runs.length > 0) runs[runs.length - 1]!.chars += rest;
}

/** Fills `answer` as events arrive. Calls `changed` after each. Ends early without an error if aborted. */
export async function streamAnswer(
  api: Api, body: unknown, answer: Message, changed: () => void, signal: AbortSignal,
): Promise<void> {
  const begun = performance.now();
  let first = 0;
  let last = 0;
  let counted: Record<string, number> = {};
  let pending = 0; // characters that no count of tokens covers yet
  answer.runs = [];
  const stats = (answer.stats = { ttftS: 0, decodeS: 0, promptTokens: 0, cachedTokens: 0, outputTokens: 0, finish: '' });

  const take = (chunk: Chunk): void => {
    if (chunk.error) throw new CallError(sentence(chunk.error.message), 500);
    const choice = chunk.choices?.[0];
    const text = choice?.delta?.content ?? '';
    answer.content += text;
    pending += text.length;
    for (const delta of choice?.delta?.tool_calls ?? []) addCall(answer, delta);
    for (const token of choice?.logprobs?.content ?? []) (answer.tokens ??= []).push(tokenOf(token));
    if (choice?.finish_reason) stats.finish = choice.finish_reason;
    if (text || choice?.delta?.tool_calls?.length) {
      last = performance.now();
      first ||= last;
      stats.ttftS = (first - begun) / 1000;
      stats.decodeS = (last - first) / 1000;
    }
    if (chunk.usage) {
      stats.promptTokens = chunk.usage.prompt_tokens;
      stats.outputTokens = chunk.usage.completion_tokens;
      stats.cachedTokens = chunk.usage.prompt_tokens_details?.cached_tokens ?? stats.cachedTokens;
      const now = chunk.usage.output_tokens_by_precision;
      if (now) {
        addRun(answer.runs!, counted, now, pending);
        counted = now;
        pending = 0;
      }
    }
    changed();
  };

  try {
    const response = await api.call('v1/chat/completions', { method: 'POST', body: JSON.stringify(body), signal });
    await readEvents(response, (event) => {
      if (event.data !== '[DONE]') take(JSON.parse(event.data) as Chunk);
    });
    if (!stats.finish) throw new CallError('The connection ended before the answer did. Try again.', 0);
  } catch (error) {
    if (signal.aborted) {
      stats.finish = 'stopped';
      return;
    }
    throw error instanceof CallError ? error : new CallError('The connection broke before the answer ended. Try again.', 0);
  }
}

function addCall(answer: Message, delta: ToolDelta): void {
  const calls = (answer.calls ??= []);
  const call = (calls[delta.index] ??= { id: '', name: '', arguments: '' });
  call.id ||= delta.id ?? '';
  call.name += delta.function?.name ?? '';
  call.arguments += delta.function?.arguments ?? '';
}

function tokenOf(token: TokenJson): Token {
  return {
    text: token.token,
    logprob: token.logprob,
    top: (token.top_logprobs ?? []).map((other) => ({ text: other.token, logprob: other.logprob })),
  };
}
