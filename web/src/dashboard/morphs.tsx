import { clock, plural, seconds } from '../ui/format';
import { tintClass } from '../ui/precision';
import { failureOf, groupText, regroupingText, type MorphGroup, type MorphStep, type Regrouping } from './model';
import { sentence } from '../ui/api';

interface Props {
  groups: MorphGroup[];
  regroupings: Regrouping[];
  several: boolean; // replicas: each morph names its own
}

export function Morphs({ groups, regroupings, several }: Props) {
  const entries = [
    ...groups.map((group) => ({ at: group.at, entry: <Group key={group.key} group={group} several={several} /> })),
    ...regroupings.map((change) => ({ at: change.asked_at, entry: <Change key={`c${change.asked_at} ${change.replicas.join()}`} change={change} /> })),
  ].sort((a, b) => b.at - a.at);
  return (
    <section class="card morphs" aria-label="Morphs">
      <div class="row"><h2>Morphs</h2><span class="muted small">as they happen, the latest first</span></div>
      {entries.length === 0 ? (
        <p class="muted empty">None yet. When requests begin to wait, or when you ask for another form, each step appears here with its reason.</p>
      ) : (
        <ol class="log" tabIndex={0} aria-label="Morphs, the latest first">
          {entries.slice(0, 60).map(({ entry }) => entry)}
        </ol>
      )}
    </section>
  );
}

function Group({ group, several }: { group: MorphGroup; several: boolean }) {
  const done = group.steps.filter((step) => step.done_after_s !== null);
  const failed = group.steps.filter((step) => failureOf(step));
  const remarks = [...new Set(group.steps.map((step) => step.remark).filter(Boolean))];
  const open = group.steps.length - done.length - failed.length;
  const took = Math.max(0, ...done.map((step) => step.asked_at + step.done_after_s! - group.at));
  return (
    <li>
      <div class="row">
        <time class="num muted small">{clock(group.at)}</time>
        <b class="grow">{several && `Replica ${group.replica}: `}{sentence(groupText(group.steps)).replace(/\.$/, '')}</b>
        <span class={`state small num ${failed.length > 0 ? 'bad' : open > 0 ? 'busy' : ''}`}>
          {failed.length > 0 ? 'failed' : open > 0 ? `${done.length} of ${group.steps.length}` : seconds(took)}
        </span>
      </div>
      <p class="reason">{sentence(group.reason)}</p>
      <details>
        <summary class="small"><Pips steps={group.steps} />{plural(group.steps.length, 'step')}</summary>
        <ol class="steps small num">
          {group.steps.map((step) => (
            <li key={step.id}>
              <span>{step.text}</span>
              <span class="muted">{failureOf(step) || (step.done_after_s === null ? (step.ready_after_s === null ? 'copying' : 'ready') : seconds(step.done_after_s))}</span>
            </li>
          ))}
        </ol>
      </details>
      {failed.length > 0 && <p class="notice bad small">{sentence(failureOf(failed[0]!))} The form before this step serves.</p>}
      {remarks.map((remark) => <p key={remark} class="muted small">{sentence(remark!)}</p>)}
    </li>
  );
}

/** A change of groups. */
function Change({ change }: { change: Regrouping }) {
  const open = change.done_after_s === undefined;
  const facts = [
    plural(change.steps, 'step'),
    ...(change.blocks_moved > 0 ? [`${plural(change.blocks_moved, 'KV block')} moved`] : []),
    ...(change.preempted > 0 ? [`${plural(change.preempted, 'request')} computed again`] : []),
  ];
  return (
    <li>
      <div class="row">
        <time class="num muted small">{clock(change.asked_at)}</time>
        <b class="grow">{regroupingText(change)}</b>
        <span class={`state small num ${change.failure ? 'bad' : open ? 'busy' : ''}`}>{change.failure ? 'turned back' : open ? 'runs' : seconds(change.done_after_s!)}</span>
      </div>
      <p class="reason">{sentence(change.reason)}</p>
      <p class="muted small num">{facts.join(', ')}</p>
      {change.failure && <p class="notice bad small">{sentence(change.failure)}</p>}
    </li>
  );
}

function Pips({ steps }: { steps: MorphStep[] }) {
  return (
    <span class="pips" aria-hidden="true">
      {steps.slice(0, 48).map((step) => (
        <i key={step.id} class={step.to ? tintClass(step.to) : 'tint-kv'} data-open={step.done_after_s === null} />
      ))}
    </span>
  );
}
