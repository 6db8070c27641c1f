// Precisions and their tints, which are the same in chats, memory maps and charts.

export interface Share {
  precision: string;
  share: number; // of the layers, 0 to 1
}

const weights = ['f32', 'bf16', 'w8', 'w4', 'w3'] as const;

/** Returns how the weights of a precision are stored: "w8" for "w8a8". */
export function storage(precision: string): string {
  return precision.replace(/a\d+$/, '');
}

/** Returns the CSS class that sets --tint. */
export function tintClass(precision: string): string {
  const stored = storage(precision);
  return (weights as readonly string[]).includes(stored) ? `tint-${stored}` : 'tint-other';
}

/** Bits of one weight, without its scale. 0 if the precision is unknown. */
export function bits(precision: string): number {
  const stored = storage(precision);
  return { f32: 32, bf16: 16, f16: 16 }[stored] ?? Number(/^w(\d+)$/.exec(stored)?.[1] ?? 0);
}

/** Orders precisions from the most bits to the fewest. */
export function byBits(a: string, b: string): number {
  return bits(b) - bits(a) || a.localeCompare(b);
}

/** Splits a label such as "bf16:12.5+w4:3.5" into shares of the layers. */
export function sharesOf(label: string): Share[] {
  const parts = label
    .split('+')
    .map((part) => part.split(':'))
    .filter((part) => part.length === 2 && part[0] !== 'embeddings')
    .map(([precision, count]) => ({ precision: precision!, share: Number(count) }));
  const all = parts.reduce((sum, part) => sum + part.share, 0);
  return all > 0 ? parts.map((part) => ({ ...part, share: part.share / all })) : [];
}

/** Returns a label for people: "bf16", or "12.5 layers bf16, 3.5 w4". */
export function labelText(label: string): string {
  const parts = label.split('+').map((part) => part.split(':'));
  const layers = parts.filter((part) => part[0] !== 'embeddings');
  const rest = parts.filter((part) => part[0] === 'embeddings').map((part) => `embeddings ${part[1]}`);
  const text =
    layers.length === 1
      ? [layers[0]![0]!]
      : layers.map(([precision, count], i) => `${count}${i === 0 ? ' layers' : ''} ${precision}`);
  return [...text, ...rest].join(', ');
}

/** Splits "bf16/w4" into the precisions of attention and MLP. */
export function halvesOf(layer: string): [string, string] {
  const [attention, mlp] = layer.split('/');
  return [attention!, mlp ?? attention!];
}

/** The precisions of an answer; a token counts at each by the share of the layers that have it. */
export function precisionShares(runs: { label: string; tokens: number }[]): Share[] {
  const sums = new Map<string, number>();
  const all = runs.reduce((sum, run) => sum + run.tokens, 0);
  for (const run of runs) {
    for (const { precision, share } of sharesOf(run.label)) sums.set(precision, (sums.get(precision) ?? 0) + (share * run.tokens) / all);
  }
  return [...sums].map(([precision, share]) => ({ precision, share })).sort((a, b) => byBits(a.precision, b.precision));
}
