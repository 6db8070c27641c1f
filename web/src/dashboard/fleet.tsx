// The replicas of a fleet: the load of each, which of them serve as one, and how an operator changes that.

import { useState } from 'preact/hooks';
import { count, plural, short } from '../ui/format';
import { labelText, tintClass } from '../ui/precision';
import { type Ask } from './asking';
import {
  layersByPrecision, loadOf, regroupingText, replicasText, serversOf, type Form, type Sample, type Server, type State,
} from './model';
import { sentence } from '../ui/api';

interface Props {
  state: State;
  sample?: Sample;
  ask: Ask | null; // null: nothing can be steered
}

export function Fleet({ state, sample, ask }: Props) {
  const [chosen, setChosen] = useState<ReadonlySet<number>>(new Set());
  const servers = serversOf(state);
  const choose = (replica: number) => {
    const next = new Set(chosen);
    if (!next.delete(replica)) next.add(replica);
    setChosen(next);
  };
  return (
    <section class="card fleet" aria-label="Fleet">
      <div class="row">
        <h2>Fleet</h2>
        <span class="muted small">{plural(Object.keys(state.replicas).length, 'replica')}{servers.length < Object.keys(state.replicas).length ? ` in ${plural(servers.length, 'group')}` : ''}</span>
      </div>
      <div class="table" tabIndex={0} role="region" aria-label="Replicas">
        <table class="num">
          <thead>
            <tr>
              <th scope="col">Serves</th><th scope="col">Running</th><th scope="col">Waiting</th><th scope="col">KV in use</th><th scope="col">Tokens/s</th><th scope="col">Form</th>
            </tr>
          </thead>
          <tbody>
            {servers.map((server) => (
              <Row key={server.replica} server={server} sample={sample} chosen={chosen.has(server.replica)} onChoose={ask && (() => choose(server.replica))} />
            ))}
          </tbody>
        </table>
      </div>
      {state.regrouping?.map((change) => (
        <p key={change.replicas.join()} class="notice change small" role="status">
          <i class="lamp busy" />
          <span>
            <b>{regroupingText(change)}</b>: {change.stage}, {plural(change.steps, 'step')} done. {sentence(change.reason)}
            {change.waits_for && ` ${sentence(change.waits_for)}`}
          </span>
        </p>
      ))}
      {ask && <Actions state={state} servers={servers} chosen={servers.filter(({ replica }) => chosen.has(replica))} ask={ask} onDone={() => setChosen(new Set())} />}
    </section>
  );
}

function formText(form: Form): string {
  return labelText(Object.entries(layersByPrecision([form])).map(([precision, layers]) => `${precision}:${layers}`).join('+'));
}

function Row({ server, sample, chosen, onChoose }: { server: Server; sample?: Sample; chosen: boolean; onChoose: (() => void) | null }) {
  const { form } = server.status;
  const load = loadOf(sample, server.replica);
  const blocks = load.kvBlocks || form.kv_blocks;
  const name = replicasText(server.replicas);
  return (
    <tr>
      <th scope="row">
        {onChoose ? (
          <label class="check"><input type="checkbox" checked={chosen} onChange={onChoose} />{name}</label>
        ) : (
          name
        )}
        {server.by && <span class="muted small"> one, by {server.by}</span>}
      </th>
      <td>{count(load.running)}</td>
      <td class={load.waiting > 0 ? 'late' : ''}>{count(load.waiting)}</td>
      <td>
        <span class="gauge" aria-hidden="true"><i style={{ width: `${(100 * load.kvUsed) / Math.max(1, blocks)}%` }} /></span>
        {Math.round((100 * load.kvUsed) / Math.max(1, blocks))} % of {count(blocks)}
      </td>
      <td>{short(Math.round(load.tokensPerS))}</td>
      <td>
        <span class="precision">
          {Object.keys(layersByPrecision([form])).map((precision) => <i key={precision} class={`swatch ${tintClass(precision)}`} />)}
          {formText(form)}
        </span>
      </td>
    </tr>
  );
}

interface ActionsProps {
  state: State;
  servers: Server[];
  chosen: Server[];
  ask: Ask;
  onDone: () => void;
}

function Actions({ state, servers, chosen, ask, onDone }: ActionsProps) {
  const [said, setSaid] = useState<{ text: string; bad: boolean } | null>(null);
  const [busy, setBusy] = useState(false);
  const put = async (path: string, body: unknown, done: (answer: Answer) => string): Promise<void> => {
    setBusy(true);
    setSaid(null);
    const answer = await ask<Answer>('PUT', path, body);
    setSaid('failure' in answer ? { text: answer.failure, bad: true } : { text: done(answer.value), bad: false });
    if (!('failure' in answer)) onDone();
    setBusy(false);
  };
  const ready = state.state === 'ready' && !busy;
  const replicas = chosen.flatMap((server) => server.replicas).sort((a, b) => a - b);
  const groupable = state.groups !== undefined;
  const join = (by: 'shards' | 'layers') =>
    void put('admin/fleet', { groups: [replicas], by }, ({ changes = [] }) =>
      changes.length === 0 ? `${replicasText(replicas)} are one already.` : `${replicasText(replicas)} become one by ${by}.`);
  const part = () =>
    void put('admin/fleet', { groups: replicas.map((replica) => [replica]) }, ({ changes = [] }) =>
      changes.length === 0 ? `${replicasText(replicas)} serve alone already.` : `${replicasText(replicas)} part.`);
  return (
    <>
      <div class="row actions" role="group" aria-label="Groups">
        <button type="button" class="button slim" disabled={!ready || !groupable || chosen.length < 2} onClick={() => join('shards')}>Group by shards</button>
        <button type="button" class="button slim" disabled={!ready || !groupable || chosen.length < 2} onClick={() => join('layers')}>Group by layers</button>
        <button type="button" class="button slim" disabled={!ready || !groupable || !chosen.some((server) => server.replicas.length > 1)} onClick={part}>Part</button>
        <span class="hint small muted grow">
          {!groupable ? 'These replicas form no groups.' : chosen.length === 0 ? 'Choose replicas that are to serve as one, or a group that is to part.' : `${replicasText(replicas)} chosen.`}
        </span>
      </div>
      {servers.length > 1 && (
        <Migration serving={servers.map(({ replica }) => replica)} ready={ready}
          onMove={(from, to, requests) =>
            void put('admin/fleet/migrate', { from, to, ...(requests > 0 && { requests }) }, ({ migrating = 0 }) =>
              `${plural(migrating, 'request')} ${migrating === 1 ? 'moves' : 'move'} from replica ${from} to replica ${to}.`)} />
      )}
      <p class={`said small ${said?.bad ? 'notice bad' : ''}`} role="status">{said?.text ?? ''}</p>
    </>
  );
}

interface Answer {
  changes?: unknown[];
  migrating?: number;
}

/** Moves requests that decode between replicas or groups, each named by the first of its replicas. */
function Migration({ serving, ready, onMove }: { serving: number[]; ready: boolean; onMove: (from: number, to: number, requests: number) => void }) {
  const [from, setFrom] = useState(serving[0]!);
  const [to, setTo] = useState(serving[1]!);
  const [text, setText] = useState('');
  const requests = text.trim() === '' ? 0 : Number(text);
  const valid = Number.isInteger(requests) && requests >= 0 && from !== to && serving.includes(from) && serving.includes(to);
  const select = (label: string, value: number, set: (replica: number) => void) => (
    <label>
      <span>{label}</span>
      <select value={value} onChange={(event) => set(Number(event.currentTarget.value))}>
        {serving.map((replica) => <option key={replica} value={replica}>{replica}</option>)}
      </select>
    </label>
  );
  return (
    <form class="row actions move small" aria-label="Move requests" onSubmit={(event) => { event.preventDefault(); if (valid) onMove(from, to, requests); }}>
      <label><span>Move</span><input class="few" inputMode="numeric" placeholder="all" aria-label="Requests to move; empty: all" value={text} onInput={(event) => setText(event.currentTarget.value)} /></label>
      <span>requests</span>
      {select('from replica', from, setFrom)}
      {select('to', to, setTo)}
      <button type="submit" class="button slim" disabled={!ready || !valid}>Move</button>
    </form>
  );
}
