// Reads server-sent events from a fetch: unlike EventSource it can send a key and a body.

export interface ServerEvent {
  event: string;
  data: string;
}

/** Splits text into events. A text may end anywhere: the rest is kept for the next call. */
export class EventParser {
  private rest = '';

  push(text: string): ServerEvent[] {
    this.rest += text;
    const events: ServerEvent[] = [];
    for (;;) {
      const end = /\r?\n\r?\n/.exec(this.rest);
      if (!end) return events;
      const block = this.rest.slice(0, end.index);
      this.rest = this.rest.slice(end.index + end[0].length);
      let event = 'message';
      const data: string[] = [];
      for (const line of block.split(/\r?\n/)) {
        const match = /^(event|data): ?(.*)$/s.exec(line);
        if (match?.[1] === 'event') event = match[2]!;
        if (match?.[1] === 'data') data.push(match[2]!);
      }
      if (data.length > 0) events.push({ event, data: data.join('\n') });
    }
  }
}

/** Calls `onEvent` for each event of the response, until it ends. */
export async function readEvents(response: Response, onEvent: (event: ServerEvent) => void): Promise<void> {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = response.body!.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    for (const event of parser.push(decoder.decode(value, { stream: true }))) onEvent(event);
  }
}
