// A recording: the state at its beginning and every change after it.

import { Model, withIdle, type Point, type Sample, type State } from './model';

interface Change {
  t: number;
  event: string;
  data: unknown;
}

export class Recording {
  private constructor(
    readonly name: string,
    readonly from: number,
    readonly to: number,
    private readonly first: State,
    private readonly changes: Change[],
  ) {}

  /** Reads a file of JSON lines. Throws an Error that says what is wrong. */
  static parse(text: string, name: string): Recording {
    const lines = text.split('\n').filter((line) => line.trim());
    try {
      const head = JSON.parse(lines[0] ?? '') as { protean_recording?: number; from: number; to: number; state: State };
      if (head.protean_recording !== 1) throw new Error();
      return new Recording(name, head.from, head.to, head.state, lines.slice(1).map((line) => JSON.parse(line) as Change));
    } catch {
      throw new Error(`${name} is not a recording of Protean. Choose a file that Record saved.`);
    }
  }

  samples(): Sample[] {
    const points = this.changes.filter((change) => change.event === 'point').map((change) => ({ ...(change.data as Point), step: 0.5 }));
    return withIdle(points, this.to);
  }

  requests(): number {
    return this.changes.filter((change) => change.event === 'request').length;
  }

  /** Returns the server as it was at a time. Goes on from `before` if that was earlier. */
  at(t: number, before: Replayed | null): Replayed {
    const replayed = before && before.t <= t ? before : { model: this.begin(), next: 0, t: this.from };
    while (replayed.next < this.changes.length && this.changes[replayed.next]!.t <= t) {
      const change = this.changes[replayed.next++]!;
      if (change.event === 'state' || change.event === 'morphs') replayed.model.apply(change.event, change.data);
    }
    replayed.t = t;
    return replayed;
  }

  private begin(): Model {
    const none = () => ({ step_s: 0.5, points: [] });
    return new Model({ now: this.from, state: this.first, morphs: [], ranges: { minute: none(), hour: none(), all: none() } });
  }
}

export interface Replayed {
  model: Model;
  next: number;
  t: number;
}
