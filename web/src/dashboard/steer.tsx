import { useState } from 'preact/hooks';
import { Dialog, Icon } from '../ui/parts';
import { plural } from '../ui/format';
import { tintClass, halvesOf } from '../ui/precision';
import { type Ask } from './asking';
import { replicasText, runsText, serversOf, type ReplicaState, type Server, type State } from './model';

interface Props {
  ask: Ask;
  state: State;
  selected: ReadonlySet<number>;
  onSelect: (layers: Set<number>) => void;
}

const modes = ['off', 'accuracy', 'balanced', 'performance'];

type Half = 'both' | 'attention' | 'mlp';
type Wish = (status: ReplicaState) => unknown;

export function Steer({ ask, state, selected, onSelect }: Props) {
  const servers = serversOf(state);
  const [target, setTarget] = useState(-1); // a replica; -1: all
  const [half, setHalf] = useState<Half>('both');
  const [blocks, setBlocks] = useState('');
  const [floor, setFloor] = useState('');
  const [said, setSaid] = useState<{ text: string; bad: boolean } | null>(null);
  const [busy, setBusy] = useState(false);
  const [drains, setDrains] = useState(false);

  const named = servers.filter(({ replica }) => replica === target);
  const targets = named.length > 0 ? named : servers;
  const shown = targets[0]!.status;
  const want = async (wish: Wish, done?: string): Promise<void> => {
    setBusy(true);
    const answers = await Promise.all(targets.map(async ({ replica, status }) => {
      const answer = await ask<{ summary?: string }>('PUT', `admin/form?replica=${replica}`, wish(status));
      return { replica, answer };
    }));
    const failed = answers.flatMap(({ replica, answer }) => ('failure' in answer ? [`${targets.length > 1 ? `Replica ${replica}: ` : ''}${answer.failure}`] : []));
    const first = answers.flatMap(({ answer }) => ('value' in answer ? [answer.value.summary ?? 'done'] : [])).find((text) => text !== 'nothing to change');
    setSaid(failed.length > 0 ? { text: failed.join(' '), bad: true } : { text: done ?? (first ? `Asked for: ${first}.` : 'The form is already so.'), bad: false });
    setBusy(false);
  };
  const drain = async (): Promise<void> => {
    const answer = await ask('POST', 'admin/drain');
    setSaid('failure' in answer ? { text: answer.failure, bad: true } : { text: 'The server drains.', bad: false });
  };

  const all = shown.wanted.layer_precision;
  const chosen = selected.size > 0 ? [...selected] : all.map((_, i) => i);
  const lower = (precision: string) =>
    void want(({ wanted }) => ({
      layers: wanted.layer_precision.map((layer, i) => {
        if (!chosen.includes(i)) return layer;
        const [attention, mlp] = halvesOf(layer);
        return `${half === 'mlp' ? attention : precision}/${half === 'attention' ? mlp : precision}`;
      }),
    }));
  const now = (precision: string) =>
    targets.every(({ status }) => chosen.every((i) => {
      const [attention, mlp] = halvesOf(status.wanted.layer_precision[i]!);
      return (half === 'mlp' || attention === precision) && (half === 'attention' || mlp === precision);
    }));
  const steerable = shown.precisions.length > 0 && state.state === 'ready';
  const pinned = targets.filter(({ status }) => status.pinned).length;
  const wish = Number(blocks);
  return (
    <section class="card steer" aria-label="Steer">
      <div class="row">
        <h2>Steer</h2>
        <span class="grow" />
        <span class="small decides">
          <i class={`lamp ${pinned > 0 ? 'held' : shown.mode === 'off' ? '' : 'auto'}`} />
          {pinned > 0 ? (pinned < targets.length ? `${pinned} of ${targets.length} held by an operator` : 'Held by an operator') : shown.mode === 'off' ? 'No policy: the form stays' : `The policy decides: ${shown.mode}`}
        </span>
      </div>
      {servers.length > 1 && <Targets servers={servers} target={named.length > 0 ? target : -1} onTarget={setTarget} />}
      <div class="field">
        <span class="row">
          <span class="label grow">{selected.size === 0 ? 'All layers' : `${plural(selected.size, 'layer')}: ${runsText(chosen)}`}</span>
          {selected.size > 0 && <button type="button" class="link small" onClick={() => onSelect(new Set())}>All instead</button>}
        </span>
        {selected.size === 0 && <span class="hint">Choose layers in the memory map to change only those.</span>}
      </div>
      <div class="segments" role="group" aria-label="Halves">
        {([['both', 'Both halves'], ['attention', 'Attention'], ['mlp', 'MLP']] as const).map(([name, label]) => (
          <button key={name} type="button" aria-pressed={half === name} onClick={() => setHalf(name)}>{label}</button>
        ))}
      </div>
      <div class="precisions" role="group" aria-label="Precision of the chosen layers">
        {shown.precisions.map((precision) => (
          <button key={precision} type="button" class={`button slim ${tintClass(precision)}`} aria-pressed={now(precision)} disabled={busy || !steerable} onClick={() => lower(precision)}>
            <i class="swatch" />{precision}
          </button>
        ))}
      </div>
      <div class="pair">
        <label class="field">
          <span>Embeddings</span>
          <select value={shown.wanted.embeddings} disabled={busy || !steerable} onChange={(event) => { const embeddings = event.currentTarget.value; void want(() => ({ embeddings })); }}>
            {[...new Set([...shown.embeddings_precisions, shown.wanted.embeddings])].map((precision) => <option key={precision}>{precision}</option>)}
          </select>
        </label>
        <form class="field" onSubmit={(event) => { event.preventDefault(); if (Number.isInteger(wish) && wish > 0) { void want(() => ({ kv_blocks: wish })); setBlocks(''); } }}>
          <label class="label" for="kv-blocks">KV blocks</label>
          <span class="join">
            <input id="kv-blocks" inputMode="numeric" placeholder={`${shown.wanted.kv_blocks}`} value={blocks} disabled={!steerable} onInput={(event) => setBlocks(event.currentTarget.value)} />
            <button type="submit" class="button slim" disabled={busy || !steerable || !(Number.isInteger(wish) && wish > 0)}>Set</button>
          </span>
        </form>
      </div>
      <div class="pair">
        <label class="field">
          <span>Mode of the policy</span>
          <select value={shown.mode} disabled={busy || !steerable} onChange={(event) => { const mode = event.currentTarget.value; void want(() => ({ mode }), `The mode is ${mode}.`); }}>
            {modes.map((mode) => <option key={mode}>{mode}</option>)}
          </select>
        </label>
        <form class="field" onSubmit={(event) => { event.preventDefault(); const wished = floor.trim(); if (wished) { void want(() => ({ quality_floor: wished }), `The quality floor is ${wished}.`); setFloor(''); } }}>
          <label class="label" for="quality-floor">Quality floor</label>
          <span class="join">
            <input id="quality-floor" placeholder={shown.quality_floor} title="6bits: the mean of a weight; 8layers: the most that are lowered; none" value={floor} disabled={!steerable} onInput={(event) => setFloor(event.currentTarget.value)} />
            <button type="submit" class="button slim" disabled={busy || !steerable || floor.trim() === ''} aria-label="Set the quality floor">Set</button>
          </span>
        </form>
      </div>
      <div class="row">
        <button type="button" class="button slim" disabled={busy || !steerable || pinned === targets.length} onClick={() => void want(({ wanted }) => ({ layers: wanted.layer_precision }), 'The form stays as it is until it is released.')}><Icon name="pin" />Hold this form</button>
        <button type="button" class="button slim" disabled={busy || !steerable || pinned === 0} onClick={() => void want(() => ({ release: true }))}>Release</button>
        <span class="grow" />
        <button type="button" class="button slim danger" disabled={busy || state.state === 'draining'} onClick={() => setDrains(true)}>Drain</button>
      </div>
      <p class={`said small ${said?.bad ? 'notice bad' : ''}`} role="status">{said?.text ?? ''}</p>
      {drains && (
        <Dialog title="Drain and end this server?" onClose={() => setDrains(false)}>
          <div class="stack">
            <p>Running answers finish, new requests get a 503, then the process ends.</p>
            <div class="row end">
              <button type="button" class="button" autofocus onClick={() => setDrains(false)}>Keep serving</button>
              <button type="button" class="button danger" onClick={() => { setDrains(false); void drain(); }}>Drain</button>
            </div>
          </div>
        </Dialog>
      )}
    </section>
  );
}

/** Chooses which replicas a wish is for. */
function Targets({ servers, target, onTarget }: { servers: Server[]; target: number; onTarget: (replica: number) => void }) {
  return (
    <label class="field">
      <span>Form of</span>
      <select value={target} onChange={(event) => onTarget(Number(event.currentTarget.value))}>
        <option value={-1}>All replicas</option>
        {servers.map(({ replica, replicas }) => <option key={replica} value={replica}>{replicasText(replicas)}</option>)}
      </select>
    </label>
  );
}
