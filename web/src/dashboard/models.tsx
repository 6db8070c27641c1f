// The models of a server: which one the page shows, and whether each is in memory.

import { useEffect, useState } from 'preact/hooks';
import { count, plural } from '../ui/format';
import { type Api } from '../ui/api';
import { type Ask } from './asking';
import { jobsOf, type ModelJob, type Progress, type ShownJob } from './jobs';

export interface HostedModel {
  model: string;
  residence?: string; // "awake", "asleep", "deploying", ...
  replicas?: number;
  form?: string;
  now?: { running: number; waiting: number };
  error?: string; // why a deployment failed
  progress?: Progress; // of a deployment
  jobs?: ModelJob[]; // under way
}

const moving = new Set(['falling_asleep', 'waking', 'leaving', 'deploying']);
const soonMs = 1000;
const laterMs = 5000;

const isSeen = () => document.visibilityState === 'visible';

/** Returns true if a job of one of the models is under way. */
export const anyJob = (models: HostedModel[]): boolean => models.some((model) => jobsOf(model).length > 0);

/** The models, asked for when the page opens and as long as it is seen: each second while one of them comes or goes or has a job. */
export function useModels(api: Api, live: boolean): [HostedModel[], () => void] {
  const [models, setModels] = useState<HostedModel[]>([]);
  const [asked, ask] = useState(0);
  const again = () => ask((n) => n + 1);
  useEffect(() => {
    if (!live) return;
    let timer = 0;
    let current = true;
    const wait = (ms: number) => { if (current && isSeen()) timer = window.setTimeout(again, ms); };
    api.json<{ models: HostedModel[] }>('admin/models').then(({ models: all }) => {
      if (current) setModels(all);
      wait(anyJob(all) || all.some(({ residence }) => moving.has(residence ?? '')) ? soonMs : laterMs);
    }, () => wait(laterMs));
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [live, asked]);
  useEffect(() => {
    const seen = () => { if (isSeen()) again(); };
    document.addEventListener('visibilitychange', seen);
    return () => document.removeEventListener('visibilitychange', seen);
  }, []);
  return [models, again];
}

/** Opens the dashboard of another model of this server. */
export function ModelChoice({ models, now }: { models: HostedModel[]; now: string }) {
  return (
    <select class="model slim" aria-label="Model" value={now}
      onChange={(event) => { location.search = `?model=${encodeURIComponent(event.currentTarget.value)}`; }}>
      {models.filter(({ form }) => form).map(({ model }) => <option key={model}>{model}</option>)}
    </select>
  );
}

const words: Record<string, string> = { awake: 'in memory', asleep: 'asleep', falling_asleep: 'is about to sleep', waking: 'is loaded', leaving: 'leaves', deploying: 'is deployed', failed: 'failed' };

/** How far a job is. The bar shows work of unknown length if the share is not known. */
function Job({ job: { name, text, share } }: { job: ShownJob }) {
  return (
    <div class="job small muted">
      <progress aria-label={name} aria-valuetext={text} max={1} value={share} />
      <span>{name.replace(/ of .*/, '')}: {text}</span>
    </div>
  );
}

export function Models({ models, now, ask, onChange }: { models: HostedModel[]; now: string; ask: Ask; onChange: () => void }) {
  const [said, setSaid] = useState('');
  const send = async (model: string, what: 'sleep' | 'wake'): Promise<void> => {
    const answer = await ask('POST', `admin/${what}?model=${encodeURIComponent(model)}`);
    setSaid('failure' in answer ? answer.failure : '');
    onChange();
  };
  return (
    <section class="card models" aria-label="Models">
      <div class="row"><h2>Models</h2><span class="muted small">{plural(models.length, 'model')} of this server</span></div>
      <div class="table" tabIndex={0} role="region" aria-label="Models of this server">
        <table class="num">
          <thead><tr><th scope="col">Model</th><th scope="col">Memory</th><th scope="col">Running</th><th scope="col">Waiting</th><th scope="col">Form</th></tr></thead>
          <tbody>
            {models.map(({ model, residence = 'awake', form, now: load, error, ...job }) => (
              <tr key={model}>
                <th scope="row">{model === now || !form ? model : <a href={`?model=${encodeURIComponent(model)}`}>{model}</a>}</th>
                <td>
                  <span class="residence">{words[residence] ?? residence}{error && `: ${error}`}</span>
                  {residence === 'awake' && <button type="button" class="link small" onClick={() => void send(model, 'sleep')} aria-label={`Put ${model} to sleep`}>Sleep</button>}
                  {residence === 'asleep' && <button type="button" class="link small" onClick={() => void send(model, 'wake')} aria-label={`Wake ${model}`}>Wake</button>}
                  {jobsOf({ model, residence, ...job }).map((one) => <Job key={one.name} job={one} />)}
                </td>
                <td>{count(load?.running ?? 0)}</td>
                <td>{count(load?.waiting ?? 0)}</td>
                <td>{form ?? ''}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class={`said small ${said ? 'notice bad' : ''}`} role="status">{said}</p>
    </section>
  );
}
