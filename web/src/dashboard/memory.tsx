// The memory of devices, true to scale: every page is as wide as every other. What weights give back,
// the KV cache takes.

import { useRef, useState } from 'preact/hooks';
import { bytes, count, plural } from '../ui/format';
import { halvesOf, tintClass } from '../ui/precision';
import {
  allPagesOf, holdsText, loadOf, pagesOf, replicasText, serversOf, shardsText, type DevicePages, type ReplicaState, type Sample, type State,
} from './model';

interface Props {
  state: State;
  sample?: Sample;
  selected: ReadonlySet<number>;
  onSelect: ((layers: Set<number>) => void) | null; // null: nothing can be steered
}

export function MemoryMap({ state, sample, selected, onSelect }: Props) {
  const devices = Object.values(state.devices ?? {}).sort((a, b) => a.device - b.device);
  if (devices.length === 0) return <p class="muted">This server does not say what its pages hold.</p>;
  const servers = serversOf(state);
  const several = Object.keys(state.replicas).length > 1;
  const sets = [...new Set(devices.map((device) => device.holders.join()))];
  return (
    <div class={`devices ${devices.length > 1 ? 'many' : ''}`}>
      {sets.map((holders) => {
        const held = devices.filter((device) => device.holders.join() === holders);
        const { by } = servers.find((server) => server.replicas.includes(held[0]!.replica))!;
        const together = held[0]!.holders.length > 1;
        return (
          <div key={holders} class={`holders ${together ? 'together' : ''}`}>
            {several && (
              <h3>
                {replicasText(held[0]!.holders)}
                {together && <span class="muted"> {by ? `serve as one, divided by ${by}` : 'become one or part'}</span>}
              </h3>
            )}
            {held.map((device) => {
              const server = servers.find(({ replicas }) => replicas.includes(device.replica))!;
              return (
                <Device key={device.device} device={device} status={server.status} kvUsed={loadOf(sample, server.replica).kvUsed}
                  selected={selected} onSelect={onSelect} />
              );
            })}
          </div>
        );
      })}
    </div>
  );
}

interface DeviceProps {
  device: DevicePages;
  status: ReplicaState;
  kvUsed: number; // blocks
  selected: ReadonlySet<number>;
  onSelect: ((layers: Set<number>) => void) | null;
}

interface Held {
  layer: number;
  attention: number;
  mlp: number;
}

/** Says what a device holds of a layer. */
function layerText({ layer, attention, mlp }: Held, device: DevicePages, { form, wanted }: ReplicaState): string {
  const [a, m] = halvesOf(form.layer_precision[layer]!);
  const runs = device.shards?.layers[layer];
  const shards = (at: 0 | 2) => (runs ? `${shardsText([runs[at], runs[at + 1]!], device.shards!.of)}, ` : '');
  const coming = wanted.layer_precision[layer] !== form.layer_precision[layer] ? `; wanted ${wanted.layer_precision[layer]}` : '';
  return `Layer ${layer}: attention ${a}, ${shards(0)}${plural(attention, 'page')}; MLP ${m}, ${shards(2)}${plural(mlp, 'page')}${coming}`;
}

function Device({ device, status, kvUsed, selected, onSelect }: DeviceProps) {
  const [table, setTable] = useState(false);
  const last = useRef(-1);
  const { pages, form, wanted } = status;
  const weights = pagesOf(device) - device.kv;
  const held: Held[] = device.layers.map(([attention, mlp], layer) => ({ layer, attention, mlp })).filter(({ attention, mlp }) => attention + mlp > 0);
  const all = allPagesOf(device, pages.all);
  const free = Math.max(0, all - weights - device.kv);
  const share = form.kv_blocks > 0 ? Math.min(1, kvUsed / form.kv_blocks) : 0;
  const size = (n: number) => bytes(n * pages.bytes_each);
  const holds = holdsText(device);

  const choose = (layer: number, more: boolean) => {
    const next = new Set(more ? selected : []);
    if (more && last.current >= 0) {
      for (let i = Math.min(last.current, layer); i <= Math.max(last.current, layer); ++i) next.add(i);
    } else if (selected.has(layer) && selected.size === 1) next.delete(layer);
    else next.add(layer);
    last.current = layer;
    onSelect?.(next);
  };
  const layersShare = (weights - device.embeddings) / Math.max(1, weights + device.kv + free);
  const everyN = Math.ceil(held.length / Math.max(2, Math.min(16, Math.floor(layersShare * 36))));
  const reached = held.some(({ layer }) => layer === last.current) ? last.current : held[0]?.layer;
  return (
    <section class="device" aria-label={`Memory of device ${device.device}`}>
      <div class="row">
        <h3>Device {device.device}</h3>
        <span class="muted small num">{size(all)} in {plural(all, 'page')} of {size(1)}{holds && `; ${holds}`}</span>
        <span class="grow" />
        <button type="button" class="link small" aria-pressed={table} onClick={() => setTable(!table)}>{table ? 'Show as a map' : 'Show as a table'}</button>
      </div>
      {table ? (
        <PageTable device={device} held={held} status={status} free={free} kvUsed={kvUsed} />
      ) : (
        <div class="map-frame">
          <div class="map" role="group" aria-label={onSelect ? 'Layers; choose those to steer' : 'Layers'}>
            <div class={`cell embeddings ${tintClass(form.embeddings)}`} style={{ flexGrow: device.embeddings }}
              title={`Embedding matrix and LM head: ${form.embeddings}, ${plural(device.embeddings, 'page')}`}>
              <span class="cell-label">embed</span>
            </div>
            {held.map((of) => {
              const { layer, attention, mlp } = of;
              const [a, m] = halvesOf(form.layer_precision[layer]!);
              const text = layerText(of, device, status);
              return (
                <button key={layer} type="button" class="cell layer" style={{ flexGrow: attention + mlp }} title={text} aria-label={text}
                  aria-pressed={selected.has(layer)} data-coming={wanted.layer_precision[layer] !== form.layer_precision[layer]} disabled={!onSelect}
                  tabIndex={layer === reached ? 0 : -1}
                  onClick={(event) => choose(layer, event.shiftKey)}
                  onKeyDown={(event) => {
                    const near = event.key === 'ArrowRight' ? event.currentTarget.nextElementSibling : event.key === 'ArrowLeft' ? event.currentTarget.previousElementSibling : null;
                    if (near instanceof HTMLButtonElement) { event.preventDefault(); near.focus(); }
                  }}>
                  <i class={tintClass(a)} style={{ flexGrow: attention }} />
                  <i class={tintClass(m)} style={{ flexGrow: mlp }} />
                </button>
              );
            })}
            <div class="cell kv" style={{ flexGrow: device.kv }}
              title={`KV cache: ${plural(form.kv_blocks, 'block')} of ${form.kv_block_tokens} tokens, ${count(kvUsed)} in use`}>
              <i class="used" style={{ height: `${share * 100}%` }} />
              <span class="cell-label">KV cache<b class="num">{Math.round(share * 100)} % in use</b></span>
            </div>
            {free > 0 && <div class="cell free" style={{ flexGrow: free }} title={`${plural(free, 'page')} free`} />}
          </div>
          <div class="ruler num" aria-hidden="true">
            <div style={{ flexGrow: device.embeddings }} />
            {held.map(({ layer, attention, mlp }, i) => (
              <div key={layer} class="tick" style={{ flexGrow: attention + mlp }}>{i % everyN === 0 ? layer : ''}</div>
            ))}
            <div style={{ flexGrow: device.kv }} />
            {free > 0 && <div style={{ flexGrow: free }} />}
          </div>
          <div class={`spans small num ${weights < 0.2 * all ? 'loose' : ''}`}>
            <div style={{ flexGrow: weights }}><b>Weights</b> {size(weights)}</div>
            <div style={{ flexGrow: device.kv }}><b>KV</b> {size(device.kv)}</div>
            {free > 0 && <div style={{ flexGrow: free }}>{free > 0.07 * all && <><b>Free</b> {size(free)}</>}</div>}
          </div>
        </div>
      )}
    </section>
  );
}

function PageTable({ device, held, status, free, kvUsed }: { device: DevicePages; held: Held[]; status: ReplicaState; free: number; kvUsed: number }) {
  const { form } = status;
  const { shards } = device;
  const run = (layer: number, at: 0 | 2) => shards && <td>{shardsText([shards.layers[layer]![at], shards.layers[layer]![at + 1]!], shards.of)}</td>;
  return (
    <div class="table" tabIndex={0} role="region" aria-label={`Pages of device ${device.device} as a table`}>
      <table class="num">
        <thead><tr><th scope="col">What</th><th scope="col">Precision</th>{shards && <th scope="col">Shards</th>}<th scope="col">Pages</th></tr></thead>
        <tbody>
          <tr><th scope="row">Embedding matrix, LM head</th><td>{form.embeddings}</td>{shards && <td>{shardsText(shards.embeddings, shards.of)}</td>}<td>{count(device.embeddings)}</td></tr>
          {held.map(({ layer, attention, mlp }) => {
            const [a, m] = halvesOf(form.layer_precision[layer]!);
            return [
              <tr key={`a${layer}`}><th scope="row">Layer {layer}, attention</th><td>{a}</td>{run(layer, 0)}<td>{count(attention)}</td></tr>,
              <tr key={`m${layer}`}><th scope="row">Layer {layer}, MLP</th><td>{m}</td>{run(layer, 2)}<td>{count(mlp)}</td></tr>,
            ];
          })}
          <tr><th scope="row">KV cache, {count(kvUsed)} of {plural(form.kv_blocks, 'block')} in use</th><td>{form.kv_precision}</td>{shards && <td />}<td>{count(device.kv)}</td></tr>
          <tr><th scope="row">Free</th><td />{shards && <td />}<td>{count(free)}</td></tr>
        </tbody>
      </table>
    </div>
  );
}
