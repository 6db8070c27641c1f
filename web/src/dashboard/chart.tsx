// A chart over time. All charts share their cursor and their span.

import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { clock } from '../ui/format';

export interface Line {
  name: string;
  color: string; // a custom property of theme.css, such as "--w4"
  values: (number | null)[];
  filled?: boolean;
  faint?: boolean;
}

export interface Mark {
  t: number;
  down: boolean; // to lower precision
}

interface Props {
  title: string;
  hint?: string;
  times: number[];
  span: [number, number];
  lines: Line[];
  stacked?: boolean;
  top?: number; // the least upper end of the axis
  target?: { value: number; name: string };
  marks: Mark[];
  cursor?: number; // the time that a replay shows
  format: (value: number) => string;
}

/** Returns the colour that a custom property has now, light or dark. */
function resolve(property: string): string {
  const probe = document.createElement('i');
  probe.style.color = `var(${property})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

function useThemeCount(): number {
  const [n, set] = useState(0);
  useEffect(() => {
    const change = () => set((now) => now + 1);
    const dark = matchMedia('(prefers-color-scheme: dark)');
    dark.addEventListener('change', change);
    window.addEventListener('themechange', change);
    return () => {
      dark.removeEventListener('change', change);
      window.removeEventListener('themechange', change);
    };
  }, []);
  return n;
}

/** Sums of the lines from the first to each, for areas that lie on each other. */
function stackedValues(lines: Line[]): (number | null)[][] {
  const sums: (number | null)[][] = [];
  lines.forEach((line, i) => sums.push(line.values.map((value, at) => (value ?? 0) + (sums[i - 1]?.[at] ?? 0))));
  return sums;
}

/** Returns the places of values without neighbours, which no line shows. */
function alone(values: ArrayLike<number | null | undefined>): number[] {
  const places: number[] = [];
  for (let i = 0; i < values.length; ++i) if (values[i] != null && values[i - 1] == null && values[i + 1] == null) places.push(i);
  return places;
}

/** Leaves room for the target only if values come near it, so that small values stay readable. */
function axisTop({ top = 0, target }: Props, most: number): number {
  const wanted = target && most > target.value * 0.3 ? target.value : 0;
  return Math.max(top, wanted, most) * 1.08 || 1;
}

export function Chart(props: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [at, setAt] = useState<number | null>(null);
  const themes = useThemeCount();
  const shape = props.lines.map((line) => line.name + line.color).join();
  const order = useMemo(() => props.lines.map((_, i) => (props.stacked ? props.lines.length - 1 - i : i)), [shape, props.stacked]);

  const data = (): uPlot.AlignedData => {
    const { times, lines, stacked } = latest.current;
    const values = stacked ? stackedValues(lines) : lines.map((line) => line.values);
    return [times, ...order.map((i) => values[i]!)] as uPlot.AlignedData;
  };

  useEffect(() => {
    const muted = resolve('--muted');
    const grid = resolve('--line');
    const now = latest.current;
    const chart = new uPlot(
      {
        width: box.current!.clientWidth || 300,
        height: 132,
        legend: { show: false },
        padding: [8, 4, 0, 0],
        cursor: { sync: { key: 'time' }, points: { size: 6 }, drag: { x: false, y: false }, y: false },
        scales: {
          x: { time: true, range: () => latest.current.span },
          y: { range: (_, __, most) => [0, axisTop(latest.current, most ?? 0)] },
        },
        axes: [
          { stroke: muted, grid: { show: false }, ticks: { show: false }, size: 24, gap: 4, font: '11px Inter, system-ui, sans-serif', space: 64,
            values: (_, ticks) => {
              const fine = latest.current.span[1] - latest.current.span[0] < 600;
              return ticks.map((t) => new Date(t * 1000).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', ...(fine ? { second: '2-digit' } : {}), hour12: false }));
            } },
          { stroke: muted, grid: { stroke: grid, width: 1 }, ticks: { show: false }, size: 52, gap: 6, font: '11px Inter, system-ui, sans-serif', space: 36,
            values: (_, ticks) => ticks.map((value) => latest.current.format(value)) },
        ],
        series: [
          {},
          ...order.map((i): uPlot.Series => {
            const line = now.lines[i]!;
            const color = resolve(line.color);
            return {
              stroke: now.stacked ? color : color,
              width: now.stacked ? 0 : line.faint ? 1.2 : 1.8,
              dash: line.faint ? [4, 3] : undefined,
              fill: now.stacked ? color : line.filled ? color.replace('rgb(', 'rgba(').replace(')', ', 0.14)') : undefined,
              paths: now.stacked ? uPlot.paths.stepped!({ align: 1 }) : uPlot.paths.linear!(),
              points: now.stacked ? { show: false } : { show: true, size: 4, fill: color, filter: (u, series) => alone(u.data[series]!) },
              spanGaps: false,
            };
          }),
        ],
        hooks: {
          setCursor: [(u) => setAt(u.cursor.idx ?? null)],
          drawClear: [(u) => drawMarks(u, latest.current, { mark: resolve('--muted') })],
          draw: [(u) => drawTarget(u, latest.current, { target: resolve('--bad'), cursor: resolve('--ink') })],
        },
      },
      data(),
      box.current!,
    );
    plot.current = chart;
    const sizes = new ResizeObserver(() => chart.setSize({ width: box.current!.clientWidth, height: 132 }));
    sizes.observe(box.current!);
    return () => {
      sizes.disconnect();
      chart.destroy();
    };
  }, [shape, themes]);
  useEffect(() => plot.current?.setData(data()));

  // The values of the cursor, or of the time that a replay shows, or the last ones.
  const later = props.cursor === undefined ? -1 : props.times.findIndex((t) => t > props.cursor!);
  const shown = at !== null && at < props.times.length ? at : later < 0 ? props.times.length - 1 : later - 1;
  const value = (line: Line): number | null => {
    let i = shown;
    if (at === null && props.cursor === undefined) while (i > 0 && line.values[i] == null) --i; // the last one that there was
    return line.values[i] ?? null;
  };
  return (
    <figure class="chart">
      <figcaption>
        <h3>{props.title}</h3>
        <ul class="values num">
          {props.lines.map((line) => (
            <li key={line.name}>
              <i class="swatch" style={{ '--tint': `var(${line.color})` } as never} data-faint={line.faint} />
              {line.name} <b>{value(line) === null ? '–' : props.format(value(line)!)}</b>
            </li>
          ))}
          {props.target && <li><i class="swatch target" />target <b>{props.format(props.target.value)}</b></li>}
        </ul>
        <span class="at num">{at !== null && props.times[shown] ? clock(props.times[shown]!) : ''}</span>
      </figcaption>
      <div class="plot" ref={box} aria-hidden="true" />
      {props.times.length === 0 && <p class="nothing muted small">Nothing has run in this time.</p>}
      {props.hint && <p class="sr">{props.hint}</p>}
    </figure>
  );
}

function drawMarks(u: uPlot, props: Props, colors: { mark: string }): void {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colors.mark;
  ctx.globalAlpha = 0.55;
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const mark of props.marks) {
    if (mark.t < props.span[0] || mark.t > props.span[1]) continue;
    const x = Math.round(u.valToPos(mark.t, 'x', true)) + 0.5;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const size = 4 * devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(x - size, bbox.top + (mark.down ? 0 : size));
    ctx.lineTo(x + size, bbox.top + (mark.down ? 0 : size));
    ctx.lineTo(x, bbox.top + (mark.down ? size : 0));
    ctx.fill();
  }
  ctx.restore();
}

function drawTarget(u: uPlot, props: Props, colors: { target: string; cursor: string }): void {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  if (props.target && props.target.value <= u.scales.y!.max!) {
    const y = Math.round(u.valToPos(props.target.value, 'y', true)) + 0.5;
    ctx.strokeStyle = colors.target;
    ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
  }
  if (props.cursor !== undefined) {
    const x = Math.round(u.valToPos(props.cursor, 'x', true)) + 0.5;
    ctx.strokeStyle = colors.cursor;
    ctx.setLineDash([]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}
