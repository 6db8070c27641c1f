import { byBits, storage } from '../ui/precision';
import { seconds, short } from '../ui/format';
import { Chart, type Line, type Mark } from './chart';
import { loadOf, replicasText, serversOf, type MorphGroup, type Regrouping, type Sample, type State } from './model';
import { bits } from '../ui/precision';

interface Props {
  samples: Sample[];
  span: [number, number];
  state: State;
  groups: MorphGroup[];
  regroupings: Regrouping[];
  cursor?: number;
}

/** A mark where a morph began, of those that were done. */
function marksOf(groups: MorphGroup[], regroupings: Regrouping[], state: State): Mark[] {
  const full = bits(serversOf(state)[0]!.status.ladder[0] ?? 'bf16') || 16;
  const morphs = groups
    .filter((group) => group.steps.some((step) => step.done_after_s !== null))
    .map((group) => {
      const to = group.steps.find((step) => step.to)?.to;
      return { t: group.at, down: to ? bits(to) < full : false };
    });
  return [...morphs, ...regroupings.map((change) => ({ t: change.asked_at, down: change.to === 'group' }))];
}

/** The requests of each replica that serves, running and waiting. */
function replicaLines(samples: Sample[], state: State): Line[] {
  const colors = ['--bf16', '--w8', '--w4', '--w3', '--f32', '--kv', '--ink', '--other'];
  return serversOf(state).map(({ replica, replicas }, i) => ({
    name: replicasText(replicas).toLowerCase(),
    color: colors[i % colors.length]!,
    values: samples.map((sample) => { const { running, waiting } = loadOf(sample, replica); return running + waiting; }),
  }));
}

function precisionLines(samples: Sample[], of: (sample: Sample) => Record<string, number> | undefined, scale: (sample: Sample) => number): Line[] {
  const names = [...new Set(samples.flatMap((sample) => Object.keys(of(sample) ?? {})))].sort(byBits);
  return names.map((name) => ({
    name,
    color: ['f32', 'bf16', 'w8', 'w4', 'w3'].includes(storage(name)) ? `--${storage(name)}` : '--other',
    values: samples.map((sample) => (of(sample)?.[name] ?? 0) * scale(sample)),
  }));
}

export function Charts({ samples, span, state, groups, regroupings, cursor }: Props) {
  const times = samples.map((sample) => sample.t);
  const marks = marksOf(groups, regroupings, state);
  const several = Object.keys(state.replicas).length > 1;
  const shared = { times, span, marks, cursor };
  const at = (key: 'ttft_s' | 'token_s', i: number) => samples.map((sample) => sample[key]?.[i] ?? null);
  const quantiles = (key: 'ttft_s' | 'token_s'): Line[] => [
    { name: 'P95', color: '--accent', values: joined(at(key, 1), samples) },
    { name: 'median', color: '--kv', values: joined(at(key, 0), samples), faint: true },
  ];
  return (
    <div class="charts">
      <Chart title="Requests" {...shared} top={4} format={(value) => short(Math.round(value))} lines={[
        { name: 'running', color: '--ink', values: samples.map((sample) => sample.running), filled: true },
        { name: 'waiting', color: '--bad', values: samples.map((sample) => sample.waiting) },
      ]} />
      <Chart title="Output tokens/s" {...shared} stacked top={1} format={short}
        lines={precisionLines(samples, (sample) => sample.tokens, (sample) => 1 / sample.step)} />
      <Chart title="Time to first token" {...shared} format={seconds} lines={quantiles('ttft_s')}
        target={state.targets?.ttft_s ? { value: state.targets.ttft_s, name: 'target' } : undefined} />
      <Chart title="Time per output token" {...shared} format={seconds} lines={quantiles('token_s')}
        target={state.targets?.tpot_s ? { value: state.targets.tpot_s, name: 'target' } : undefined} />
      <Chart title="KV cache" {...shared} top={1} format={(value) => short(Math.round(value))} lines={[
        { name: 'blocks', color: '--kv-free', values: samples.map((sample) => sample.kv_blocks), filled: true },
        { name: 'in use', color: '--kv', values: samples.map((sample) => sample.kv_used), filled: true },
      ]} />
      <Chart title="Form: layers by precision" {...shared} stacked top={serversOf(state)[0]!.status.form.layer_precision.length / 1.08} format={short}
        lines={precisionLines(samples, (sample) => sample.layers, () => 1)} />
      {several && <Chart title="Requests by replica" {...shared} top={4} format={(value) => short(Math.round(value))} lines={replicaLines(samples, state)} />}
    </div>
  );
}

/** Joins single values over short gaps, so that a slot without a first token does not cut the line. */
function joined(values: (number | null)[], samples: Sample[]): (number | null)[] {
  const whole = [...values];
  let last = -1;
  values.forEach((value, i) => {
    if (value === null) return;
    if (last >= 0 && i - last > 1 && samples[i]!.t - samples[last]!.t <= 12 * samples[last]!.step) for (let j = last + 1; j < i; ++j) whole[j] = values[last]! + ((value - values[last]!) * (j - last)) / (i - last);
    last = i;
  });
  return whole;
}
