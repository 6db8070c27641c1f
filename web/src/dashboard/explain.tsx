// Why the form is what it is: the load that the policy sees and, if the server tells them, the forms
// that it weighed with the numbers that it predicted. Shows what is there; names are the server's.

import { seconds, short } from '../ui/format';
import { labelText, sharesOf, tintClass } from '../ui/precision';
import { useState } from 'preact/hooks';
import { replicasText, serversOf, type State } from './model';

type Row = Record<string, unknown>;

interface Candidates {
  title: string;
  at?: number;
  reason?: string;
  rows: Row[];
}

const isRow = (value: unknown): value is Row => value !== null && typeof value === 'object' && !Array.isArray(value);
const isRows = (value: unknown): value is Row[] => Array.isArray(value) && value.length > 0 && value.every(isRow);
const words = (name: string) => name.replace(/_per_s$/, '/s').replace(/_(s|ms|share)$/, '').replace(/_/g, ' ');

/** The fields that hold candidates. In "predictions" the verdict says which one was chosen; servers without one name it first. */
const listNames = ['candidates', 'predictions'];

/** Finds lists of candidates in what a replica says, or in its last decisions. */
export function candidatesOf(state: Row): Candidates[] {
  const found: Candidates[] = [];
  const visit = (value: unknown, name: string, depth: number): void => {
    if (isRow(value)) {
      for (const list of listNames) {
        const rows = value[list];
        if (!isRows(rows)) continue;
        found.push({
          title: name === '' ? 'The latest decision' : words(name),
          at: typeof value.at === 'number' ? value.at : undefined,
          reason: typeof value.reason === 'string' ? value.reason : undefined,
          rows: list === 'predictions' ? rows.map((row, i) => ({ ...row, chosen: 'verdict' in row ? row.verdict === 'chosen' : i === 0 })) : rows,
        });
      }
      if (depth < 3) for (const [key, inner] of Object.entries(value)) if (!listNames.includes(key)) visit(inner, key, depth + 1);
    } else if (Array.isArray(value) && depth < 3) {
      value.slice(-4).reverse().forEach((inner) => visit(inner, name, depth + 1));
    }
  };
  visit(state, '', 0);
  return found;
}

/** Flattens {"predicted": {"late": 3}} to {"late": 3}. */
function flat(row: Row): Row {
  return Object.fromEntries(Object.entries(row).flatMap(([key, value]) => (isRow(value) ? Object.entries(flat(value)) : [[key, value]])));
}

export function shown(name: string, value: unknown): string {
  if (typeof value === 'boolean') return value ? 'yes' : '';
  if (typeof value === 'string') return value;
  if (typeof value !== 'number') return '';
  if (/_ms$/.test(name)) return seconds(value / 1000);
  if (/_s$/.test(name) && !/_per_s$/.test(name)) return seconds(value);
  if (/share$/.test(name)) return `${short(value * 100)} %`;
  return short(value);
}

/** Names for people of the fields that are known; others are shown as the server names them. */
const columnNames: Record<string, string> = {
  precision: 'Form',
  kv_blocks: 'KV blocks',
  late: 'Late',
  late_most: 'Late, at most',
  late_lasting: 'Late, for a minute',
  kv_short_blocks: 'KV short',
  answer_tokens_per_s: 'Tokens/s',
  capacity_per_s: 'Serves steadily, requests/s',
  kl_nats: 'KL, nats',
  cost: 'Cost',
  cost_most: 'Cost, at most',
  morph_s: 'Morph',
  verdict: 'Verdict',
};
const loadNames: Record<string, string> = {
  arrivals_per_s: 'Arrivals, requests/s',
  arrivals_last_s: 'Expected to last',
  arrivals_per_s_most: 'Arrivals, at most',
  answer_tokens: 'Tokens of an answer',
  expected_wait_s: 'Queue time of a new request',
  ttft_p95_s: 'TTFT P95, last 15 s',
  tpot_p95_s: 'TPOT P95, last 15 s',
};

export function Explain({ state }: { state: State }) {
  const [of, setOf] = useState(0); // a replica
  const servers = serversOf(state);
  const server = servers.find(({ replica }) => replica === of) ?? servers[0]!;
  const lists = candidatesOf(server.status);
  return (
    <section class="card explain" aria-label="Explain">
      <div class="row">
        <h2>Explain</h2><span class="muted small">what the policy sees</span>
        <span class="grow" />
        {servers.length > 1 && (
          <select class="slim" aria-label="Replica to explain" value={server.replica} onChange={(event) => setOf(Number(event.currentTarget.value))}>
            {servers.map(({ replica, replicas }) => <option key={replica} value={replica}>{replicasText(replicas)}</option>)}
          </select>
        )}
      </div>
      <dl class="load small num">
        {Object.entries(server.status.load).filter(([, value]) => typeof value === 'number').map(([name, value]) => (
          <div key={name}><dt>{loadNames[name] ?? words(name)}</dt><dd>{shown(name, value) || '0'}</dd></div>
        ))}
      </dl>
      {lists.map((list, i) => <Table key={i} list={list} />)}
    </section>
  );
}

function Table({ list }: { list: Candidates }) {
  const rows = list.rows.map(flat);
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((name) => name !== 'chosen' && rows.some((row) => shown(name, row[name]) !== ''));
  const chosen = (row: Row) => row.chosen === true;
  return (
    <div class="table" tabIndex={0} role="region" aria-label={list.title}>
      {list.reason && <p class="small">{list.reason}</p>}
      <table class="num small">
        <caption class="small muted">{list.title}: the forms that it weighed and what it predicts for each. The one that it chose stands out.</caption>
        <thead><tr>{names.map((name) => <th key={name} scope="col">{columnNames[name] ?? words(name)}</th>)}</tr></thead>
        <tbody>
          {rows.map((row, i) => (
            <tr key={i} class={chosen(row) ? 'chosen' : ''}>{names.map((name) => <td key={name}><Value name={name} value={row[name]} /></td>)}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A value; one that names precisions has their tints. */
function Value({ name, value }: { name: string; value: unknown }) {
  const shares = typeof value === 'string' ? sharesOf(value).filter(({ share }) => share > 0) : [];
  if (shares.length === 0) return <>{shown(name, value)}</>;
  return (
    <span class="precision">
      {shares.map(({ precision }) => <i key={precision} class={`swatch ${tintClass(precision)}`} />)}
      {labelText(value as string)}
    </span>
  );
}
