// Work in the background that comes to an end: deployments, changes of intent, profilings.

export interface Progress {
  loaded?: number; // share of the weights
  steps?: number; // of a fingerprint that were timed
  of_steps?: number;
  fingerprint?: number; // that is being made, from 1 on
  fingerprints?: number;
}

/** A job of a model that serves. */
export interface ModelJob {
  job: string; // "intent" or "profile"
  state: string;
  intent?: string;
  progress?: Progress;
}

/** A job as people see it. */
export interface ShownJob {
  name: string; // "Profiling of story"
  text: string; // how far it is
  share?: number; // of the work that is done; absent if it is not known
}

function stepsText({ steps = 0, of_steps = 0, fingerprint, fingerprints }: Progress): string {
  const which = fingerprints ? `fingerprint ${fingerprint} of ${fingerprints}, ` : '';
  return `${which}step ${steps} of ${of_steps}`;
}

/** Returns the share of the weights that is loaded, or else of the steps that are timed. All fingerprints have as many. */
function shareOf({ loaded, steps = 0, of_steps = 1, fingerprint = 1, fingerprints = 1 }: Progress): number {
  return loaded ?? (fingerprint - 1 + steps / of_steps) / fingerprints;
}

function shownJob(name: string, state: string, progress?: Progress): ShownJob {
  if (!progress) return { name, text: state };
  const far = progress.loaded === undefined ? stepsText(progress) : `${Math.round(100 * progress.loaded)} % of the weights`;
  return { name, text: `${state}, ${far}`, share: shareOf(progress) };
}

/** Returns the jobs under way of a model. */
export function jobsOf({ model, residence, progress, jobs = [] }: { model: string; residence?: string; progress?: Progress; jobs?: ModelJob[] }): ShownJob[] {
  const shown = jobs.map(({ job, state, intent, progress: far }) =>
    job === 'intent' ? shownJob(`Change of intent of ${model}`, `${intent}: ${state}`, far) : shownJob(`Profiling of ${model}`, state, far));
  return residence === 'deploying' ? [shownJob(`Deployment of ${model}`, 'under way', progress), ...shown] : shown;
}
