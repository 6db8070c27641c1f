import { useState } from 'preact/hooks';
import { type Api, CallError } from '../ui/api';
import { Dialog, Icon } from '../ui/parts';
import { plural } from '../ui/format';
import { tintClass, halvesOf } from '../ui/precision';
import { runsText, type State } from './model';

interface Props {
  api: Api;
  state: State;
  selected: ReadonlySet<number>;
  onSelect: (layers: Set<number>) => void;
  onKey: (why: string) => void;
}

type Half = 'both' | 'attention' | 'mlp';

export function Steer({ api, state, selected, onSelect, onKey }: Props) {
  const [half, setHalf] = useState<Half>('both');
  const [blocks, setBlocks] = useState('');
  const [said, setSaid] = useState<{ text: string; bad: boolean } | null>(null);
  const [busy, setBusy] = useState(false);
  const [drains, setDrains] = useState(false);

  const ask = async (method: string, path: string, body?: unknown, done?: string): Promise<void> => {
    setBusy(true);
    try {
      const answer = await api.json<{ summary?: string }>(path, { method, body: body === undefined ? undefined : JSON.stringify(body) });
      setSaid({ text: done ?? (answer.summary === 'nothing to change' ? 'The form is already so.' : `Asked for: ${answer.summary ?? 'done'}.`), bad: false });
    } catch (error) {
      const failed = error as CallError;
      if (failed.status === 401) onKey(failed.message);
      setSaid({ text: failed.message, bad: true });
    }
    setBusy(false);
  };
  const want = (wish: unknown, done?: string) => void ask('PUT', 'admin/form', wish, done);

  const all = state.wanted.layer_precision;
  const chosen = selected.size > 0 ? [...selected] : all.map((_, i) => i);
  const lower = (precision: string) =>
    want({
      layers: all.map((layer, i) => {
        if (!chosen.includes(i)) return layer;
        const [attention, mlp] = halvesOf(layer);
        return `${half === 'mlp' ? attention : precision}/${half === 'attention' ? mlp : precision}`;
      }),
    });
  const now = (precision: string) =>
    chosen.every((i) => {
      const [attention, mlp] = halvesOf(all[i]!);
      return (half === 'mlp' || attention === precision) && (half === 'attention' || mlp === precision);
    });
  const steerable = state.precisions.length > 0 && state.state === 'ready';
  const wish = Number(blocks);
  return (
    <section class="card steer" aria-label="Steer">
      <div class="row">
        <h2>Steer</h2>
        <span class="grow" />
        <span class="small decides">
          <i class={`lamp ${state.pinned ? 'held' : state.mode === 'off' ? '' : 'auto'}`} />
          {state.pinned ? 'Held by an operator' : state.mode === 'off' ? 'No policy: the form stays' : `The policy decides: ${state.mode}`}
        </span>
      </div>
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
        {state.precisions.map((precision) => (
          <button key={precision} type="button" class={`button slim ${tintClass(precision)}`} aria-pressed={now(precision)} disabled={busy || !steerable} onClick={() => lower(precision)}>
            <i class="swatch" />{precision}
          </button>
        ))}
      </div>
      <div class="pair">
        <label class="field">
          <span>Embeddings</span>
          <select value={state.wanted.embeddings} disabled={busy || !steerable} onChange={(event) => want({ embeddings: event.currentTarget.value })}>
            {[...new Set([...state.embeddings_precisions, state.wanted.embeddings])].map((precision) => <option key={precision}>{precision}</option>)}
          </select>
        </label>
        <form class="field" onSubmit={(event) => { event.preventDefault(); if (Number.isInteger(wish) && wish > 0) { want({ kv_blocks: wish }); setBlocks(''); } }}>
          <label class="label" for="kv-blocks">KV blocks</label>
          <span class="join">
            <input id="kv-blocks" inputMode="numeric" placeholder={`${state.wanted.kv_blocks}`} value={blocks} disabled={!steerable} onInput={(event) => setBlocks(event.currentTarget.value)} />
            <button type="submit" class="button slim" disabled={busy || !steerable || !(Number.isInteger(wish) && wish > 0)}>Set</button>
          </span>
        </form>
      </div>
      <div class="row">
        <button type="button" class="button slim" disabled={busy || !steerable || state.pinned} onClick={() => want({ layers: all }, 'The form stays as it is until it is released.')}><Icon name="pin" />Hold this form</button>
        <button type="button" class="button slim" disabled={busy || !steerable || !state.pinned} onClick={() => want({ release: true })}>Release</button>
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
              <button type="button" class="button danger" onClick={() => { setDrains(false); void ask('POST', 'admin/drain', undefined, 'The server drains.'); }}>Drain</button>
            </div>
          </div>
        </Dialog>
      )}
    </section>
  );
}
