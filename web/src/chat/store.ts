// Keeps conversations in the browser's IndexedDB. Where there is none, such as in some private
// windows, they last as long as the page.

import type { Conversation } from './model';

const table = 'conversations';

export class Store {
  private constructor(private readonly db: IDBDatabase | null) {}

  static open(): Promise<Store> {
    return new Promise((settle) => {
      try {
        const request = indexedDB.open('protean', 1);
        request.onupgradeneeded = () => request.result.createObjectStore(table, { keyPath: 'id' });
        request.onsuccess = () => settle(new Store(request.result));
        request.onerror = request.onblocked = () => settle(new Store(null));
      } catch {
        settle(new Store(null));
      }
    });
  }

  /** All conversations, the latest first. */
  async all(): Promise<Conversation[]> {
    const all = (await this.run<Conversation[]>('readonly', (rows) => rows.getAll())) ?? [];
    return all.sort((a, b) => b.updated - a.updated);
  }
  async put(conversation: Conversation): Promise<void> {
    await this.run('readwrite', (rows) => rows.put(JSON.parse(JSON.stringify(conversation))));
  }
  async remove(id: string): Promise<void> {
    await this.run('readwrite', (rows) => rows.delete(id));
  }

  private run<T>(mode: IDBTransactionMode, act: (rows: IDBObjectStore) => IDBRequest): Promise<T | undefined> {
    if (!this.db) return Promise.resolve(undefined);
    return new Promise((settle) => {
      const request = act(this.db!.transaction(table, mode).objectStore(table));
      request.onsuccess = () => settle(request.result as T);
      request.onerror = () => settle(undefined);
    });
  }
}
