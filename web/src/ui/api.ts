// Calls of the server that serves this page. Addresses are relative, so a path prefix stays.

import { forever, inThisTab } from './kept';

/** Why a call failed, in words for people. */
export class CallError extends Error {
  constructor(
    message: string,
    readonly status: number, // 0: no answer came
    readonly param = '',
  ) {
    super(message);
  }
}

const unreachable = 'The server does not answer. Check that it runs and that this address is right, then try again.';

/** Keeps the key of this port in the tab, or in the browser if its owner says so. */
export class KeyRing {
  constructor(private readonly name: string) {}
  get(): string {
    return inThisTab.get(this.name) ?? forever.get(this.name) ?? '';
  }
  set(key: string, keep: boolean): void {
    this.clear();
    (keep ? forever : inThisTab).set(this.name, key);
  }
  clear(): void {
    inThisTab.remove(this.name);
    forever.remove(this.name);
  }
}

export class Api {
  /** `model` is the model that calls of the operators' port are about; empty: the first one. */
  constructor(readonly keys: KeyRing, private readonly model = '') {}

  /** Fails with CallError unless the status is 2xx. */
  async call(path: string, init: RequestInit = {}): Promise<Response> {
    const headers = new Headers(init.headers);
    const key = this.keys.get();
    if (key) headers.set('Authorization', `Bearer ${key}`);
    if (init.body) headers.set('Content-Type', 'application/json');
    let response: Response;
    try {
      response = await fetch(this.model ? withModel(path, this.model) : path, { ...init, headers, credentials: 'omit', cache: 'no-store' });
    } catch (error) {
      if ((error as Error).name === 'AbortError') throw error;
      throw new CallError(unreachable, 0);
    }
    if (!response.ok) throw await refusal(response);
    return response;
  }

  async json<T>(path: string, init: RequestInit = {}): Promise<T> {
    return (await this.call(path, init)).json() as Promise<T>;
  }
}

function withModel(path: string, model: string): string {
  if (/[?&]model=/.test(path)) return path;
  return `${path}${path.includes('?') ? '&' : '?'}model=${encodeURIComponent(model)}`;
}

async function refusal(response: Response): Promise<CallError> {
  const text = await response.text().catch(() => '');
  try {
    const { error } = JSON.parse(text) as { error: { message: string; param?: string | null } };
    return new CallError(sentence(error.message), response.status, error.param ?? '');
  } catch {
    return new CallError(
      `Something between this page and the server answered ${response.status} ${response.statusText}.`,
      response.status,
    );
  }
}

/** Gives a message a capital letter and a full stop. */
export function sentence(text: string): string {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}
