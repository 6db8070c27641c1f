// What the server tells a watcher, and what of it is shown.

export interface Point {
  t: number; // Unix seconds, the begin of the slot
  running: number;
  waiting: number;
  kv_used: number;
  kv_blocks: number;
  prompt_tokens: number;
  preemptions: number;
  ttft_s?: [number, number, number]; // median, P95, P99
  token_s?: [number, number, number];
  layers?: Record<string, number>; // mean of the replicas
  tokens?: Record<string, number>;
  /** Of each replica of several: running, waiting, KV blocks used, KV blocks, output tokens; null: another one serves for it. */
  replicas?: ([number, number, number, number, number] | null)[];
}

export interface Series {
  step_s: number;
  points: Point[];
}

export type RangeName = 'minute' | 'hour' | 'all';

export interface Form {
  text: string;
  layer_precision: string[];
  embeddings: string;
  kv_precision: string;
  kv_block_tokens: number;
  kv_blocks: number;
}

export interface DevicePages {
  device: number;
  replica: number;
  holders: number[]; // replicas whose devices hold one form together
  layers: [number, number][]; // of each layer of the model; zeros where the device does not hold it
  embeddings: number;
  kv: number;
  lacking?: number; // pages that the device has fewer than the one with most
  /** The first shard and the count of each component; absent if the device has all shards of what it holds. */
  shards?: { of: number; embeddings: [number, number]; layers: [number, number, number, number][] };
}

/** The form of a replica, or of the group that serves under its number. */
export interface ReplicaState {
  form: Form;
  wanted: Form;
  mode: string;
  quality_floor: string;
  ladder: string[];
  precisions: string[];
  embeddings_precisions: string[];
  pinned: boolean;
  packing?: { done: number; total: number; failure?: string }; // of variants, while it serves
  pages: { bytes_each: number; all: number; free: number };
  totals: Record<string, number>;
  output_tokens: Record<string, number>;
  load: Record<string, number>;
  [more: string]: unknown;
}

/** A change of groups. */
export interface Regrouping {
  replicas: string[];
  by: 'shards' | 'layers';
  to: 'group' | 'replicas';
  reason: string;
  asked_at: number;
  done_after_s?: number;
  steps: number;
  blocks_moved: number;
  preempted: number;
  failure?: string;
  stage?: string; // of the one under way
  waits_for?: string;
}

export interface State {
  state: 'loading' | 'ready' | 'draining';
  model: string;
  version: string;
  replicas: Record<string, ReplicaState | { serves_in: number }>;
  devices?: Record<string, DevicePages>;
  targets?: { ttft_s?: number; tpot_s?: number };
  groups?: { replicas: string[]; by?: 'shards' | 'layers' }[]; // absent: replicas cannot be grouped
  regrouping?: Regrouping[];
  regroupings?: Record<string, Regrouping>;
}

/** A replica that serves, for itself or for all replicas of its group. */
export interface Server {
  replica: number;
  replicas: number[];
  by?: 'shards' | 'layers';
  status: ReplicaState;
}

/** Returns the replicas that serve, in order. There is at least one. */
export function serversOf(state: State): Server[] {
  const servers: Server[] = [];
  for (const [number, status] of Object.entries(state.replicas)) {
    if ('form' in status) servers.push({ replica: Number(number), replicas: [Number(number)], status: status as ReplicaState });
  }
  for (const [number, status] of Object.entries(state.replicas)) {
    if (!('form' in status)) servers.find((server) => server.replica === status.serves_in)?.replicas.push(Number(number));
  }
  for (const server of servers) server.by = state.groups?.find((group) => Number(group.replicas[0]) === server.replica)?.by;
  return servers.sort((a, b) => a.replica - b.replica);
}

/** Names replicas: "Replica 0", "Replicas 0, 1". */
export function replicasText(replicas: (number | string)[]): string {
  return `${replicas.length === 1 ? 'Replica' : 'Replicas'} ${replicas.join(', ')}`;
}

/** The load of one replica in a sample; of all if there is one replica. */
export interface Load {
  running: number;
  waiting: number;
  kvUsed: number;
  kvBlocks: number;
  tokensPerS: number;
}

export function loadOf(sample: Sample | undefined, replica: number): Load {
  if (!sample) return { running: 0, waiting: 0, kvUsed: 0, kvBlocks: 0, tokensPerS: 0 };
  const tokens = Object.values(sample.tokens ?? {}).reduce((sum, value) => sum + value, 0);
  const [running, waiting, kvUsed, kvBlocks, output] =
    (sample.replicas ? sample.replicas[replica] : null) ??
    (sample.replicas ? [0, 0, 0, 0, 0] : [sample.running, sample.waiting, sample.kv_used, sample.kv_blocks, tokens]);
  return { running: running!, waiting: waiting!, kvUsed: kvUsed!, kvBlocks: kvBlocks!, tokensPerS: output! / sample.step };
}

export interface MorphStep {
  id: number; // unlike that of any other step of its replica
  replica?: number;
  kind: 'swap' | 'embeddings' | 'kv';
  text: string;
  layer?: number;
  half?: string;
  to?: string;
  kv_blocks?: number;
  reason: string;
  asked_at: number;
  ready_after_s: number | null;
  done_after_s: number | null;
  failure: string | null;
  remark: string | null;
}

export interface Hello {
  now: number;
  state: State;
  morphs: MorphStep[];
  ranges: Record<RangeName, Series>;
}

/** Applies a JSON merge patch (RFC 7396). Returns a new value; parts that are unchanged stay the same objects. */
export function mergePatch<T>(target: T, patch: unknown): T {
  if (patch === null || typeof patch !== 'object' || Array.isArray(patch)) return patch as T;
  const whole = target !== null && typeof target === 'object' && !Array.isArray(target) ? target : {};
  const result: Record<string, unknown> = { ...(whole as Record<string, unknown>) };
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete result[key];
    else result[key] = mergePatch(result[key], value);
  }
  return result as T;
}

const mostPoints: Record<RangeName, number> = { minute: 120, hour: 360, all: 360 };
const keptMorphs = 600;

/** The server as it was told so far. */
export class Model {
  state: State;
  readonly morphs = new Map<string, MorphStep>();
  readonly ranges: Record<RangeName, Series>;
  /** Server time less this machine's, seconds. */
  clockOffset: number;

  constructor(hello: Hello) {
    this.state = hello.state;
    this.ranges = hello.ranges;
    this.clockOffset = hello.now - Date.now() / 1000;
    this.takeMorphs(hello.morphs);
  }

  now(): number {
    return Date.now() / 1000 + this.clockOffset;
  }

  /** Applies an event of the stream or of a recording. Events that it does not know change nothing. */
  apply(event: string, data: unknown): void {
    if (event === 'state') this.state = mergePatch(this.state, data);
    if (event === 'morphs') this.takeMorphs(data as MorphStep[]);
    if (event === 'range') {
      const { range, ...series } = data as Series & { range: RangeName };
      this.ranges[range] = series;
    }
    if (event === 'point') {
      const { range, point } = data as { range: RangeName; point: Point };
      const { points } = this.ranges[range];
      points.push(point);
      if (points.length > mostPoints[range]) points.shift();
    }
  }

  private takeMorphs(steps: MorphStep[]): void {
    for (const step of steps) this.morphs.set(`${step.replica ?? 0}:${step.id}`, step);
    while (this.morphs.size > keptMorphs) this.morphs.delete(this.morphs.keys().next().value!);
  }
}

/** A point with the length of its slot. */
export interface Sample extends Point {
  step: number;
}

/** Returns the points from a time on, and the one before it, from which an idle time may last. */
function sampled(series: Series, from: number, before: boolean): Sample[] {
  const first = series.points.findIndex((point) => point.t >= from - 1e-3);
  const begin = Math.max(0, (first < 0 ? series.points.length : first) - (before ? 1 : 0));
  return series.points.slice(begin).map((point) => ({ ...point, step: series.step_s }));
}

function end(samples: Sample[], otherwise: number): number {
  const last = samples[samples.length - 1];
  return last ? last.t + last.step : otherwise;
}

/** Joins the timelines that show a range: what a coarse one does not have yet, a finer one has. */
export function samplesOf(ranges: Record<RangeName, Series>, range: RangeName, now: number): Sample[] {
  const spans: Record<RangeName, number> = { minute: 60, hour: 3600, all: Infinity };
  const samples: Sample[] = [];
  for (const name of (['all', 'hour', 'minute'] as const).slice(['all', 'hour', 'minute'].indexOf(range))) {
    samples.push(...sampled(ranges[name], end(samples, now - spans[range]), samples.length === 0));
  }
  return withIdle(samples, now);
}

/** Adds zeros where the server had nothing to do and therefore told nothing. */
export function withIdle(samples: Sample[], now: number): Sample[] {
  const whole: Sample[] = [];
  const idle = (from: Sample, t: number, step: number): Sample => ({
    t, step, running: 0, waiting: 0, kv_used: 0, kv_blocks: from.kv_blocks, prompt_tokens: 0, preemptions: 0, layers: from.layers,
    ...(from.replicas && { replicas: from.replicas.map((one) => one && [0, 0, 0, one[3], 0]) }),
  });
  samples.forEach((sample, i) => {
    whole.push(sample);
    const next = samples[i + 1]?.t ?? now;
    const from = sample.t + sample.step;
    if (next - from > sample.step * 0.9) {
      whole.push(idle(sample, from, sample.step));
      if (next - from > sample.step * 1.5) whole.push(idle(sample, next - 1e-3, sample.step));
    }
  });
  return whole;
}

/** A morph: the steps that one decision asked for. */
export interface MorphGroup {
  key: string;
  replica: number;
  reason: string;
  at: number;
  steps: MorphStep[];
}

/** Groups steps by decision, the latest first. */
export function groupMorphs(steps: Iterable<MorphStep>): MorphGroup[] {
  const groups: MorphGroup[] = [];
  const open = new Map<string, MorphGroup>(); // the last one of each replica
  for (const step of [...steps].sort((a, b) => a.asked_at - b.asked_at)) {
    const replica = step.replica ?? 0;
    const last = open.get(`${replica}`);
    if (last && last.reason === step.reason && step.asked_at - last.steps[last.steps.length - 1]!.asked_at < 5) last.steps.push(step);
    else {
      const group = { key: `${replica}:${step.id}`, replica, reason: step.reason, at: step.asked_at, steps: [step] };
      groups.push(group);
      open.set(`${replica}`, group);
    }
  }
  return groups.reverse();
}

/** Returns the changes of groups, the latest first. */
export function regroupingsOf(state: State): Regrouping[] {
  const all = [...Object.values(state.regroupings ?? {}), ...(state.regrouping ?? [])];
  return all.sort((a, b) => b.asked_at - a.asked_at);
}

/** Says what a change of groups does: "Replicas 0, 1 become one by shards". */
export function regroupingText(change: Regrouping): string {
  const ended = change.done_after_s !== undefined;
  if (ended && change.failure) return `${replicasText(change.replicas)} did not ${change.to === 'group' ? 'part' : `become one by ${change.by}`}`;
  if (change.to === 'replicas') return `${replicasText(change.replicas)} ${ended ? 'have parted' : 'part'}`;
  return `${replicasText(change.replicas)} ${ended ? 'became' : 'become'} one by ${change.by}`;
}

/** Says what a group changes: "12 halves to w8, KV to 1,024 blocks". */
export function groupText(steps: MorphStep[]): string {
  const halves = new Map<string, number>();
  const others = new Map<string, string>();
  for (const step of steps) {
    if (step.kind === 'swap') halves.set(step.to!, (halves.get(step.to!) ?? 0) + 1);
    if (step.kind === 'embeddings') others.set('embeddings', `embeddings to ${step.to}`);
    if (step.kind === 'kv') others.set('kv', `KV to ${step.kv_blocks!.toLocaleString('en')} blocks`);
  }
  return [...[...halves].map(([to, n]) => `${n} ${n === 1 ? 'half' : 'halves'} of layers to ${to}`), ...others.values()].join(', ');
}

/** What is wrong with a step, or nothing. */
export function failureOf(step: MorphStep): string {
  return step.failure ?? '';
}

/** Counts the layers of each precision; a half counts 0.5. Of several forms, returns the mean. */
export function layersByPrecision(forms: Form[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const layer of forms.flatMap((form) => form.layer_precision)) {
    const halves = layer.split('/');
    for (const half of [halves[0]!, halves[1] ?? halves[0]!]) counts[half] = (counts[half] ?? 0) + 0.5 / forms.length;
  }
  return counts;
}

/** Says which shards and layers of the model a device holds; nothing if it holds all. */
export function holdsText(device: DevicePages): string {
  const held = device.layers.flatMap(([attention, mlp], layer) => (attention + mlp > 0 ? [layer] : []));
  const layers = held.length === device.layers.length ? '' : held.length === 0 ? 'no layer' : `${held.length === 1 ? 'layer' : 'layers'} ${runsText(held)}`;
  if (!device.shards) return layers;
  const { of } = device.shards;
  const runs = held.flatMap((layer) => {
    const [a, an, m, mn] = device.shards!.layers[layer]!;
    return [[a, an], [m, mn]].filter(([, count]) => count! > 0) as [number, number][];
  });
  const divided = runs.filter(([, count]) => count < of);
  const alike = runs.every(([first, count]) => first === runs[0]![0] && count === runs[0]![1]);
  const shards = alike && runs.length > 0 ? `${shardsText(runs[0]!, of)}` : `shards of ${divided.length} of ${runs.length} halves of layers`;
  return layers ? `${layers}; ${shards}` : shards;
}

/** Pages of a device that hold anything. */
export function pagesOf(device: DevicePages): number {
  return device.embeddings + device.kv + device.layers.reduce((sum, [attention, mlp]) => sum + attention + mlp, 0);
}

/** Returns the pages that a device has, of a model whose largest device has `most`. */
export function allPagesOf(device: DevicePages, most: number): number {
  return most - (device.lacking ?? 0);
}

/** Names a run of shards: "shard 1 of 2", "shards 0–1 of 4". */
export function shardsText([first, count]: [number, number], of: number): string {
  if (count === 0) return 'no shard';
  if (count === of) return 'all shards';
  return count === 1 ? `shard ${first} of ${of}` : `shards ${first}–${first + count - 1} of ${of}`;
}

/** A list of whole numbers as people write it: "0–3, 7". */
export function runsText(numbers: number[]): string {
  const sorted = [...numbers].sort((a, b) => a - b);
  const runs: string[] = [];
  for (let i = 0; i < sorted.length; ) {
    let j = i;
    while (sorted[j + 1] === sorted[j]! + 1) ++j;
    runs.push(i === j ? `${sorted[i]}` : `${sorted[i]}–${sorted[j]}`);
    i = j + 1;
  }
  return runs.join(', ');
}
