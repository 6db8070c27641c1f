// A device's memory, true to scale: every page is as wide as every other. What weights give back,
// the KV cache takes.

import { useRef, useState } from 'preact/hooks';
import { bytes, count, plural } from '../ui/format';
import { halvesOf, tintClass } from '../ui/precision';
import type { DevicePages, State } from './model';

interface Props {
  state: State;
  kvUsed: number; // blocks
  selected: ReadonlySet<number>;
  onSelect: ((layers: Set<number>) => void) | null; // null: nothing can be steered
}

export function MemoryMap(props: Props) {
  const devices = props.state.devices ?? [];
  if (devices.length === 0) return <p class="muted">This server does not say what its pages hold.</p>;
  return (
    <div class="devices">
      {devices.map((device) => <Device key={device.device} device={device} {...props} />)}
    </div>
  );
}

function Device({ device, state, kvUsed, selected, onSelect }: Props & { device: DevicePages }) {
  const [table, setTable] = useState(false);
  const last = useRef(-1);
  const { pages, form, wanted } = state;
  const weights = device.embeddings + device.layers.reduce((sum, [attention, mlp]) => sum + attention + mlp, 0);
  const free = Math.max(0, pages.all - weights - device.kv);
  const held = device.layers.flatMap(([attention, mlp], layer) => (attention + mlp > 0 ? [{ layer, attention, mlp }] : []));
  const share = form.kv_blocks > 0 ? Math.min(1, kvUsed / form.kv_blocks) : 0;
  const size = (n: number) => bytes(n * pages.bytes_each);

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
  return (
    <section class="device" aria-label={`Memory of device ${device.device}`}>
      <div class="row">
        <h3>Device {device.device}</h3>
        <span class="muted small num">{size(pages.all)} in {plural(pages.all, 'page')} of {size(1)}</span>
        <span class="grow" />
        <button type="button" class="link small" aria-pressed={table} onClick={() => setTable(!table)}>{table ? 'Show as a map' : 'Show as a table'}</button>
      </div>
      {table ? (
        <PageTable device={device} held={held} state={state} free={free} kvUsed={kvUsed} />
      ) : (
        <div class="map-frame">
          <div class="map" role="group" aria-label={onSelect ? 'Layers; choose those to steer' : 'Layers'}>
            <div class={`cell embeddings ${tintClass(form.embeddings)}`} style={{ flexGrow: device.embeddings }}
              title={`Embedding matrix and LM head: ${form.embeddings}, ${plural(device.embeddings, 'page')}`}>
              <span class="cell-label">embed</span>
            </div>
            {held.map(({ layer, attention, mlp }) => {
              const [a, m] = halvesOf(form.layer_precision[layer]!);
              const coming = wanted.layer_precision[layer] !== form.layer_precision[layer];
              const text = `Layer ${layer}: attention ${a}, ${plural(attention, 'page')}; MLP ${m}, ${plural(mlp, 'page')}${coming ? `; wanted ${wanted.layer_precision[layer]}` : ''}`;
              return (
                <button key={layer} type="button" class="cell layer" style={{ flexGrow: attention + mlp }} title={text} aria-label={text}
                  aria-pressed={selected.has(layer)} data-coming={coming} disabled={!onSelect}
                  tabIndex={layer === (last.current >= 0 ? last.current : held[0]!.layer) ? 0 : -1}
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
          <div class={`spans small num ${weights < 0.2 * pages.all ? 'loose' : ''}`}>
            <div style={{ flexGrow: weights }}><b>Weights</b> {size(weights)}</div>
            <div style={{ flexGrow: device.kv }}><b>KV</b> {size(device.kv)}</div>
            {free > 0 && <div style={{ flexGrow: free }}>{free > 0.07 * pages.all && <><b>Free</b> {size(free)}</>}</div>}
          </div>
        </div>
      )}
    </section>
  );
}

interface Held {
  layer: number;
  attention: number;
  mlp: number;
}

function PageTable({ device, held, state, free, kvUsed }: { device: DevicePages; held: Held[]; state: State; free: number; kvUsed: number }) {
  const { form } = state;
  return (
    <div class="table" tabIndex={0} role="region" aria-label="Pages as a table">
      <table class="num">
        <thead><tr><th scope="col">What</th><th scope="col">Precision</th><th scope="col">Pages</th></tr></thead>
        <tbody>
          <tr><th scope="row">Embedding matrix, LM head</th><td>{form.embeddings}</td><td>{count(device.embeddings)}</td></tr>
          {held.map(({ layer, attention, mlp }) => {
            const [a, m] = halvesOf(form.layer_precision[layer]!);
            return [
              <tr key={`a${layer}`}><th scope="row">Layer {layer}, attention</th><td>{a}</td><td>{count(attention)}</td></tr>,
              <tr key={`m${layer}`}><th scope="row">Layer {layer}, MLP</th><td>{m}</td><td>{count(mlp)}</td></tr>,
            ];
          })}
          <tr><th scope="row">KV cache, {count(kvUsed)} of {plural(form.kv_blocks, 'block')} in use</th><td>{form.kv_precision}</td><td>{count(device.kv)}</td></tr>
          <tr><th scope="row">Free</th><td /><td>{count(free)}</td></tr>
        </tbody>
      </table>
    </div>
  );
}
