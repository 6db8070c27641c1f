// Conversations, as they are kept in the browser and exported.

export interface Settings {
  model: string;
  system: string;
  temperature: string; // numbers are kept as typed; empty: the model's default
  topP: string;
  topK: string;
  minP: string;
  maxTokens: string;
  seed: string;
  stop: string; // one sequence a line
  presence: string;
  frequency: string;
  logprobs: boolean;
  alternatives: string;
  format: 'text' | 'json' | 'schema';
  schema: string;
  tools: string; // JSON, as the API takes them; empty: none
}

/** A stretch of an answer that was computed at one precision. */
export interface Run {
  label: string;
  tokens: number;
  chars: number;
}

export interface Token {
  text: string;
  logprob: number;
  top: { text: string; logprob: number }[];
}

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

export interface Stats {
  ttftS: number; // from the call to the first token
  decodeS: number; // from the first token to the last
  promptTokens: number;
  cachedTokens: number;
  outputTokens: number;
  finish: string;
}

export interface Message {
  id: string;
  role: 'user' | 'assistant' | 'tool';
  content: string;
  calls?: ToolCall[];
  callId?: string;
  model?: string;
  runs?: Run[];
  tokens?: Token[];
  stats?: Stats;
  error?: string;
}

export interface Conversation {
  id: string;
  title: string;
  updated: number; // ms
  settings: Settings;
  messages: Message[];
}

export const defaults: Settings = {
  model: '', system: '', temperature: '', topP: '', topK: '', minP: '', maxTokens: '', seed: '', stop: '',
  presence: '', frequency: '', logprobs: false, alternatives: '4', format: 'text', schema: '', tools: '',
};

// randomUUID() needs a secure context, which http:// to another machine is not.
export function newId(): string {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

export function titleOf(text: string): string {
  const line = text.trim().split('\n')[0]!.replace(/\s+/g, ' ');
  return line.length > 60 ? `${line.slice(0, 57).trimEnd()}…` : line || 'New chat';
}

export interface Problem {
  field: keyof Settings;
  message: string;
}

const numbers: [keyof Settings, string, number, number, boolean][] = [
  ['temperature', 'temperature', 0, 2, false],
  ['topP', 'top_p', 0, 1, false],
  ['topK', 'top_k', -1, 1e6, true],
  ['minP', 'min_p', 0, 1, false],
  ['maxTokens', 'max_completion_tokens', 1, 1e7, true],
  ['seed', 'seed', 0, Number.MAX_SAFE_INTEGER, true],
  ['presence', 'presence_penalty', -2, 2, false],
  ['frequency', 'frequency_penalty', -2, 2, false],
];

function parseJson(text: string, field: keyof Settings, what: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw { field, message: `${what} is not JSON: ${(error as Error).message}` } satisfies Problem;
  }
}

/** Returns the body of the call that continues a conversation. Throws a Problem. */
export function requestBody(settings: Settings, messages: Message[]): Record<string, unknown> {
  const body: Record<string, unknown> = {
    model: settings.model,
    messages: apiMessages(settings.system, messages),
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  for (const [field, name, least, most, whole] of numbers) {
    const text = String(settings[field]).trim();
    if (!text) continue;
    const value = Number(text);
    if (!Number.isFinite(value) || value < least || value > most || (whole && !Number.isInteger(value))) {
      const kind = whole ? 'a whole number' : 'a number';
      throw { field, message: `Give ${kind} from ${least} to ${most}, or nothing for the default.` } satisfies Problem;
    }
    body[name] = value;
  }
  const stops = settings.stop.split('\n').filter((line) => line !== '');
  if (stops.length > 0) body.stop = stops;
  if (settings.logprobs) {
    body.logprobs = true;
    body.top_logprobs = Math.min(20, Math.max(0, Math.round(Number(settings.alternatives) || 0)));
  }
  if (settings.format === 'json') body.response_format = { type: 'json_object' };
  if (settings.format === 'schema') {
    const schema = parseJson(settings.schema, 'schema', 'The schema');
    body.response_format = { type: 'json_schema', json_schema: { name: 'answer', schema, strict: true } };
  }
  if (settings.tools.trim()) body.tools = parseJson(settings.tools, 'tools', 'The list of tools');
  return body;
}

function apiMessages(system: string, messages: Message[]): unknown[] {
  const sent: unknown[] = system.trim() ? [{ role: 'system', content: system }] : [];
  for (const message of messages) {
    if (message.role === 'tool') {
      sent.push({ role: 'tool', tool_call_id: message.callId, content: message.content });
    } else if (message.calls?.length) {
      sent.push({
        role: 'assistant',
        content: message.content || null,
        tool_calls: message.calls.map((call) => ({
          id: call.id, type: 'function', function: { name: call.name, arguments: call.arguments },
        })),
      });
    } else {
      sent.push({ role: message.role, content: message.content });
    }
  }
  return sent;
}

/** Writes a conversation as Markdown. */
export function asMarkdown(conversation: Conversation): string {
  const parts = [`# ${conversation.title}`];
  if (conversation.settings.system) parts.push(`## System\n\n${conversation.settings.system}`);
  for (const message of conversation.messages) {
    const who = { user: 'User', assistant: message.model ?? 'Assistant', tool: 'Tool' }[message.role];
    const calls = (message.calls ?? []).map((call) => `\`${call.name}(${call.arguments})\``);
    parts.push(`## ${who}\n\n${[message.content, ...calls].filter(Boolean).join('\n\n')}`);
  }
  return `${parts.join('\n\n')}\n`;
}
