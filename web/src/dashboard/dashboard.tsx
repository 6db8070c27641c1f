// The dashboard: what the server is, what it does, why, and how to steer it. Live, or a recording.

import { Component, type ComponentChildren } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { Api, CallError, KeyRing } from '../ui/api';
import { bytes, clock, count, duration, plural, seconds, short } from '../ui/format';
import { Icon, KeyDialog, Legend, Mark, save, ThemeButton } from '../ui/parts';
import { bits, labelText } from '../ui/precision';
import { asking, type Ask } from './asking';
import { Charts } from './charts';
import { Explain } from './explain';
import { Fleet } from './fleet';
import { Live } from './live';
import { MemoryMap } from './memory';
import { anyJob, ModelChoice, Models, useModels } from './models';
import {
  allPagesOf, groupMorphs, layersByPrecision, pagesOf, regroupingsOf, replicasText, samplesOf, serversOf, type Model, type RangeName, type ReplicaState, type Sample, type State,
} from './model';
import { Morphs } from './morphs';
import { Recording, type Replayed } from './recording';
import { Steer } from './steer';

const ranges: [RangeName, string][] = [['minute', 'Minute'], ['hour', 'Hour'], ['all', 'Since start']];

export function Dashboard() {
  const api = useMemo(() => new Api(new KeyRing('protean-admin-key'), new URLSearchParams(location.search).get('model') ?? ''), []);
  const [, redraw] = useState(0);
  const [range, setRange] = useState<RangeName>('minute');
  const [selected, setSelected] = useState<ReadonlySet<number>>(new Set());
  const [keyWhy, setKeyWhy] = useState<string | null>(null);
  const [recording, setRecording] = useState<Recording | null>(null);
  const [notice, setNotice] = useState('');
  const live = useRef<Live | null>(null);
  const ask = useMemo(() => asking(api, setKeyWhy), []);

  useEffect(() => {
    // Draws at most four times a second, and not at all while the page is hidden.
    let drawn = 0;
    const draw = () => {
      drawn = 0;
      if (document.visibilityState === 'visible') redraw((n) => n + 1);
    };
    const changed = () => { drawn ||= window.setTimeout(draw, 120); };
    live.current = new Live(api, changed, (why) => setKeyWhy(api.keys.get() ? why : ''));
    void live.current.connect();
    const clockTick = setInterval(changed, 1000); // the axis moves although nothing comes
    document.addEventListener('visibilitychange', changed);
    return () => { clearInterval(clockTick); document.removeEventListener('visibilitychange', changed); };
  }, []);

  const open = async (file: File | undefined): Promise<void> => {
    if (!file) return;
    try {
      setRecording(Recording.parse(await file.text(), file.name));
      setNotice('');
    } catch (error) {
      setNotice((error as Error).message);
    }
  };
  const record = async (minutes: number): Promise<void> => {
    try {
      const text = await (await api.call(`admin/recording?minutes=${minutes}`)).text();
      const at = new Date().toISOString().slice(0, 19).replace(/[:T]/g, '-');
      save(text, `protean-${at}.jsonl`, 'application/jsonl');
      setNotice('');
    } catch (error) {
      setNotice((error as CallError).message);
    }
  };

  const { model = null, link = 'connecting', trouble = '' } = live.current ?? {};
  const [models, askModels] = useModels(api, link === 'live');
  return (
    <div class="dash" onDragOver={(event) => event.preventDefault()} onDrop={(event) => { event.preventDefault(); void open(event.dataTransfer?.files[0]); }}>
      <a class="skip" href="#main">Skip to the dashboard</a>
      <header class="top">
        <a class="brand" href={`dashboard${location.search}`} aria-label="Protean dashboard"><Mark /><span>Protean</span></a>
        {model && (recording || models.length < 2) && <span class="model" title={`Protean ${model.state.version}`}>{model.state.model}</span>}
        {model && !recording && models.length > 1 && <ModelChoice models={models} now={model.state.model} />}
        <Pill link={link} state={model?.state.state} replay={recording !== null} />
        <span class="grow" />
        {!recording && (
          <div class="segments" role="group" aria-label="Time that the charts show">
            {ranges.map(([name, label]) => <button key={name} type="button" aria-pressed={range === name} onClick={() => setRange(name)}>{label}</button>)}
          </div>
        )}
        <RecordMenu ready={model !== null && !recording} onRecord={record} onOpen={open} />
        <ThemeButton />
      </header>
      <main id="main">
        <h1 class="sr">{model ? `${model.state.model} on Protean` : 'Protean dashboard'}</h1>
        {notice && <p class="notice bad" role="alert">{notice}</p>}
        {recording ? (
          <Shield key={recording.name} onClose={() => setRecording(null)}>
            <Replay recording={recording} onClose={() => setRecording(null)} />
          </Shield>
        ) : model ? (
          <>
            {link === 'lost' && <p class="notice warn" role="status">{model.state.state === 'draining' ? 'The server has drained and ended, or is about to. ' : 'The connection is lost. '}This page connects again by itself; what it shows is the last that it was told.</p>}
            {(models.length > 1 || anyJob(models)) && <Models models={models} now={model.state.model} ask={ask} onChange={askModels} />}
            <View
              model={model}
              samples={samplesOf(model.ranges, range, model.now())}
              span={spanOf(model, range)}
              selected={selected}
              onSelect={setSelected}
              ask={ask}
            />
          </>
        ) : (
          <Waiting link={link} trouble={trouble} onKey={() => setKeyWhy('')} />
        )}
      </main>
      {keyWhy !== null && !recording && (
        <KeyDialog keys={api.keys} flag="--admin-key" why={keyWhy}
          onDone={() => { setKeyWhy(null); void live.current!.connect(); }}
          onClose={() => setKeyWhy(null)} />
      )}
    </div>
  );
}

function spanOf(model: Model, range: RangeName): [number, number] {
  const now = model.now();
  if (range === 'all') return [Math.min(model.ranges.all.points[0]?.t ?? model.ranges.minute.points[0]?.t ?? now - 60, now - 60), now];
  return [now - (range === 'minute' ? 60 : 3600), now];
}

function Pill({ link, state, replay }: { link: string; state?: string; replay: boolean }) {
  const [look, text] = replay ? ['held', 'Recording'] : link === 'live' ? (state === 'ready' ? ['auto', 'Live'] : ['held', state ?? '']) : link === 'lost' ? ['bad', 'Connecting again'] : ['', 'Connecting'];
  return <span class="pill small"><i class={`lamp ${look}`} />{text}</span>;
}

function Waiting({ link, trouble, onKey }: { link: string; trouble: string; onKey: () => void }) {
  return (
    <div class="waiting">
      <Mark />
      <h2>{link === 'refused' ? 'A key is needed' : link === 'lost' ? 'The server does not answer' : 'Connecting'}</h2>
      {link !== 'connecting' && <p class="muted">{link === 'refused' ? 'The operators of this server set --admin-key.' : `${trouble || ''} This page tries again by itself.`}</p>}
      {link === 'refused' && <button type="button" class="button primary" onClick={onKey}><Icon name="key" />Give the key</button>}
    </div>
  );
}

function RecordMenu(props: { ready: boolean; onRecord: (minutes: number) => Promise<void>; onOpen: (file: File | undefined) => Promise<void> }) {
  const file = useRef<HTMLInputElement>(null);
  const menu = useRef<HTMLDetailsElement>(null);
  const close = () => menu.current?.removeAttribute('open');
  return (
    <details class="menu" ref={menu} onKeyDown={(event) => { if (event.key === 'Escape') close(); }}
      onFocusOut={(event) => { if (event.relatedTarget && !menu.current!.contains(event.relatedTarget as Node)) close(); }}>
      <summary class="button slim"><Icon name="dot" />Record</summary>
      <div class="sheet">
        <p class="small muted">Save what happened: events, forms, load.</p>
        {[1, 5, 15, 60].map((minutes) => (
          <button key={minutes} type="button" disabled={!props.ready} onClick={() => { close(); void props.onRecord(minutes); }}>Last {minutes === 60 ? 'hour' : plural(minutes, 'minute')}</button>
        ))}
        <hr />
        <button type="button" onClick={() => file.current!.click()}>Open a recording…</button>
        <input ref={file} type="file" accept=".jsonl,application/jsonl" hidden aria-label="Recording to open"
          onChange={(event) => { const input = event.currentTarget; close(); void props.onOpen(input.files?.[0]); input.value = ''; }} />
      </div>
    </details>
  );
}

interface ViewProps {
  model: Model;
  samples: Sample[];
  span: [number, number];
  selected: ReadonlySet<number>;
  onSelect: ((layers: Set<number>) => void) | null;
  ask: Ask | null; // null: nothing can be steered
  cursor?: number;
}

function View({ model, samples, span, selected, onSelect, ask, cursor }: ViewProps) {
  const { state } = model;
  const groups = groupMorphs(model.morphs.values());
  const regroupings = regroupingsOf(state);
  const servers = serversOf(state);
  const several = Object.keys(state.replicas).length > 1;
  const at = cursor === undefined ? samples[samples.length - 1] : [...samples].reverse().find((sample) => sample.t <= cursor);
  const shown = [...new Set(servers.flatMap(({ status: { form } }) => [...form.layer_precision.flatMap((layer) => layer.split('/')), form.embeddings]))];
  return (
    <>
      <Summary state={state} sample={at} />
      {several && <Fleet state={state} sample={at} ask={ask} />}
      <section class="card memory" aria-label="Memory">
        <div class="row">
          <h2>Memory</h2>
          <span class="muted small">each page as wide as any other; each column is a layer, its attention above its MLP</span>
          <span class="grow" />
          <Legend precisions={shown}>
            <li><i class="swatch tint-kv" />KV in use</li>
            <li><i class="swatch tint-kv-free" />KV free</li>
          </Legend>
        </div>
        <MemoryMap state={state} sample={at} selected={selected} onSelect={onSelect} />
        {servers.map(({ replica, replicas, status }) => (
          <p key={replica} class="form small num">
            <span class="muted">{several ? replicasText(replicas) : 'Form'}</span> {formText(status)}
            {status.form.text !== status.wanted.text && <span class="coming"> on the way to {wantedText(status)}</span>}
            {packingText(status)}
          </p>
        ))}
      </section>
      <div class="columns">
        <div class="main-column">
          <Charts samples={samples} span={span} state={state} groups={groups} regroupings={regroupings} cursor={cursor} />
          <Explain state={state} />
        </div>
        <div class="side">
          {ask && onSelect && <Steer ask={ask} state={state} selected={selected} onSelect={onSelect} />}
          <Morphs groups={groups} regroupings={regroupings} several={several} />
        </div>
      </div>
    </>
  );
}

function layersText(counts: Record<string, number>): string {
  return labelText(Object.entries(counts).map(([precision, layers]) => `${precision}:${layers}`).join('+'));
}
function formText({ form }: ReplicaState): string {
  const counts = layersByPrecision([form]);
  return `${Object.keys(counts).length === 1 ? `all ${count(form.layer_precision.length)} layers ` : ''}${layersText(counts)}; embeddings ${form.embeddings}; ${plural(form.kv_blocks, 'KV block')} of ${form.kv_block_tokens} tokens in ${form.kv_precision}`;
}
function packingText({ packing }: ReplicaState): string {
  if (!packing || packing.done === packing.total) return '';
  return packing.failure ? `; not all variants are packed: ${packing.failure}` : `; ${count(packing.done)} of ${count(packing.total)} variants packed`;
}
function wantedText({ wanted }: ReplicaState): string {
  return `${layersText(layersByPrecision([wanted]))}, ${plural(wanted.kv_blocks, 'KV block')}`;
}

function Summary({ state, sample }: { state: State; sample?: Sample }) {
  const rate = sample ? Object.values(sample.tokens ?? {}).reduce((sum, value) => sum + value, 0) / sample.step : 0;
  const statuses = serversOf(state).map(({ status }) => status);
  const counts = Object.entries(layersByPrecision(statuses.map(({ form }) => form)));
  const mean = counts.reduce((sum, [precision, layers]) => sum + bits(precision) * layers, 0) / statuses[0]!.form.layer_precision.length;
  const { pages } = statuses[0]!;
  const devices = Object.values(state.devices ?? {});
  const pagesAll = devices.length > 0 ? devices.reduce((sum, device) => sum + allPagesOf(device, pages.all), 0) : pages.all;
  const pagesFree = devices.reduce((sum, device) => sum + allPagesOf(device, pages.all) - pagesOf(device), 0);
  const kv = sample && sample.kv_blocks > 0 ? sample.kv_used / sample.kv_blocks : 0;
  const slowest = (name: string) => Math.max(0, ...statuses.map(({ load }) => load[name] ?? 0));
  const ttft = slowest('ttft_p95_s');
  const tpot = slowest('tpot_p95_s');
  const target = state.targets?.ttft_s;
  const tiles: [string, string, string][] = [
    ['Running', count(sample?.running ?? 0), sample?.waiting ? `${count(sample.waiting)} waiting` : 'none waits'],
    ['Output', short(Math.round(rate)), 'tokens/s'],
    ['First token, P95', ttft > 0 ? seconds(ttft) : '–', target ? `target ${short(target)} s` : 'last 15 s'],
    ['Per token, P95', tpot > 0 ? seconds(tpot) : '–', 'last 15 s'],
    ['KV in use', `${Math.round(kv * 100)} %`, `of ${plural(sample?.kv_blocks ?? statuses.reduce((sum, { form }) => sum + form.kv_blocks, 0), 'block')}`],
    ['Bits of a weight', short(Math.round(mean * 10) / 10), 'mean of layers'],
    ['Memory', bytes(pagesAll * pages.bytes_each), `${((100 * pagesFree) / Math.max(1, pagesAll)).toFixed(0)} % free`],
  ];
  return (
    <dl class="tiles num">
      {tiles.map(([name, value, more]) => (
        <div key={name} class={name.startsWith('First') && target && ttft > target ? 'late' : ''}><dt>{name}</dt><dd><b>{value}</b><span>{more}</span></dd></div>
      ))}
    </dl>
  );
}

/** Says so if a recording cannot be shown, since its file may hold anything. */
class Shield extends Component<{ onClose: () => void; children: ComponentChildren }, { failed: boolean }> {
  override state = { failed: false };
  static override getDerivedStateFromError() {
    return { failed: true };
  }
  override render() {
    if (!this.state.failed) return this.props.children;
    return (
      <div class="notice bad" role="alert">
        <p>This recording lacks fields that the dashboard needs. It may be damaged, or of another version of Protean.</p>
        <button type="button" class="button slim" onClick={this.props.onClose}>Back to live</button>
      </div>
    );
  }
}

function Replay({ recording, onClose }: { recording: Recording; onClose: () => void }) {
  const [t, setT] = useState(recording.from);
  const [speed, setSpeed] = useState(1);
  const [plays, setPlays] = useState(false);
  const replayed = useRef<Replayed | null>(null);
  const samples = useMemo(() => recording.samples(), [recording]);
  replayed.current = recording.at(t, replayed.current);
  useEffect(() => {
    if (!plays) return;
    const timer = setInterval(() => setT((now) => {
      const next = Math.min(recording.to, now + 0.25 * speed);
      if (next === recording.to) setPlays(false);
      return next;
    }), 250);
    return () => clearInterval(timer);
  }, [plays, speed, recording]);
  const whole = Math.max(recording.to - recording.from, 1);
  return (
    <>
      <section class="card replay" aria-label="Recording">
        <button type="button" class="button slim primary" onClick={() => { if (t >= recording.to) setT(recording.from); setPlays(!plays); }}>
          <Icon name={plays ? 'pause' : 'play'} />{plays ? 'Pause' : 'Play'}
        </button>
        <label class="grow scrub">
          <span class="sr">Time in the recording</span>
          <input type="range" min={recording.from} max={recording.to} step={0.1} value={t} aria-valuetext={clock(t)} onInput={(event) => setT(Number(event.currentTarget.value))} />
        </label>
        <span class="num small">{clock(t)}</span>
        <div class="segments" role="group" aria-label="Speed">
          {[1, 4, 16].map((times) => <button key={times} type="button" aria-pressed={speed === times} onClick={() => setSpeed(times)}>{times}×</button>)}
        </div>
        <span class="muted small num">{recording.name}: {duration(whole)}, {plural(recording.requests(), 'request')}</span>
        <button type="button" class="button slim" onClick={onClose}>Back to live</button>
      </section>
      <View model={replayed.current.model} samples={samples} span={[recording.from, recording.to]} selected={new Set()} onSelect={null} ask={null} cursor={t} />
    </>
  );
}
