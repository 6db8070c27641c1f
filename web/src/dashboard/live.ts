// The stream of the server's state. Connects again by itself after the server or the network broke.

import { type Api, CallError } from '../ui/api';
import { readEvents } from '../ui/sse';
import { Model, type Hello } from './model';

export type Link = 'connecting' | 'live' | 'lost' | 'refused';

export class Live {
  model: Model | null = null;
  link: Link = 'connecting';
  trouble = '';
  private waitMs = 500;
  private timer = 0;

  /** `refused` is called with the server's words when it asks for a key: once for each try. */
  constructor(private readonly api: Api, private readonly changed: () => void, private readonly refused: (why: string) => void) {}

  async connect(): Promise<void> {
    clearTimeout(this.timer);
    if (this.link === 'refused') this.link = 'connecting';
    try {
      const response = await this.api.call('admin/events');
      await readEvents(response, ({ event, data }) => {
        if (event === 'hello') {
          this.model = new Model(JSON.parse(data) as Hello);
          this.link = 'live';
          this.trouble = '';
          this.waitMs = 500;
        } else {
          this.model?.apply(event, JSON.parse(data));
        }
        this.changed();
      });
      throw new CallError('', 0);
    } catch (error) {
      const failed = error as CallError;
      this.link = failed.status === 401 ? 'refused' : 'lost';
      this.trouble = failed.message;
      this.changed();
      if (this.link === 'refused') return this.refused(this.trouble); // until a key is given
      this.timer = window.setTimeout(() => void this.connect(), this.waitMs);
      this.waitMs = Math.min(3000, this.waitMs * 1.6);
    }
  }
}
