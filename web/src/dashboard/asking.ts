// Calls that steer the server.

import { type Api, type CallError } from '../ui/api';

export type Asked<T> = { value: T } | { failure: string };

/** Sends a wish to the server. Returns its answer, or why it refused in words for people. */
export type Ask = <T>(method: string, path: string, body?: unknown) => Promise<Asked<T>>;

/** Returns an Ask; `onKey` is called with the server's words if it asks for a key. */
export function asking(api: Api, onKey: (why: string) => void): Ask {
  return async <T>(method: string, path: string, body?: unknown) => {
    try {
      return { value: await api.json<T>(path, { method, body: body === undefined ? undefined : JSON.stringify(body) }) };
    } catch (error) {
      const failed = error as CallError;
      if (failed.status === 401) onKey(failed.message);
      return { failure: failed.message };
    }
  };
}
