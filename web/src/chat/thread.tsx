import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { Icon, IconButton, copyText } from '../ui/parts';
import { labelText, precisionShares, sharesOf, tintClass } from '../ui/precision';
import { count, plural, seconds } from '../ui/format';
import { Markdown } from './markdown';
import type { Conversation, Message, Run, Stats, ToolCall } from './model';
import { TokenView } from './tokens';

interface Actions {
  again: (id: string) => void;
  edit: (id: string, text: string) => void;
  results: (results: { callId: string; content: string }[]) => void;
}

export function Thread(props: { conversation: Conversation; running: string } & Actions) {
  const { messages } = props.conversation;
  const end = useRef<HTMLElement>(null);
  const follows = useRef(true);
  useEffect(() => {
    follows.current = true;
  }, [props.conversation.id, messages.length]);
  useLayoutEffect(() => {
    const view = end.current!;
    if (follows.current) view.scrollTop = view.scrollHeight;
  });
  const last = messages[messages.length - 1];
  return (
    <section class="thread" ref={end} tabIndex={0} aria-label="Conversation"
      onScroll={(event) => {
        const view = event.currentTarget;
        follows.current = view.scrollHeight - view.scrollTop - view.clientHeight < 60;
      }}>
      <div class="column">
        {messages.map((message) =>
          message.role === 'user' ? (
            <Asked key={message.id} message={message} busy={props.running !== ''} onEdit={props.edit} />
          ) : message.role === 'tool' ? (
            <div key={message.id} class="tool-result"><span class="label">Result</span><pre>{message.content}</pre></div>
          ) : (
            <Answered key={message.id} message={message} running={message.id === props.running} busy={props.running !== ''}
              last={message === last} again={props.again} results={props.results} />
          ),
        )}
      </div>
      <p class="sr" role="status">{props.running ? 'The model writes.' : last?.role === 'assistant' ? `Answer: ${last.content}` : ''}</p>
    </section>
  );
}

function Asked(props: { message: Message; busy: boolean; onEdit: (id: string, text: string) => void }) {
  const [text, setText] = useState<string | null>(null);
  if (text !== null) {
    return (
      <form class="asked editing" onSubmit={(event) => { event.preventDefault(); if (text.trim()) { setText(null); props.onEdit(props.message.id, text); } }}>
        <textarea aria-label="Message" rows={Math.min(12, text.split('\n').length + 1)} value={text} autofocus
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => { if (event.key === 'Escape') setText(null); }} />
        <div class="row end">
          <span class="muted small grow">What follows is asked again.</span>
          <button type="button" class="button slim" onClick={() => setText(null)}>Cancel</button>
          <button type="submit" class="button slim primary">Send</button>
        </div>
      </form>
    );
  }
  return (
    <div class="asked">
      <div class="bubble">{props.message.content}</div>
      <div class="actions">
        <IconButton class="slim" icon="edit" label="Edit" disabled={props.busy} onClick={() => setText(props.message.content)} />
        <IconButton class="slim" icon="copy" label="Copy" onClick={() => void copyText(props.message.content)} />
      </div>
    </div>
  );
}

function Answered(props: {
  message: Message; running: boolean; busy: boolean; last: boolean; again: Actions['again']; results: Actions['results'];
}) {
  const { message, running } = props;
  const [view, setView] = useState<'text' | 'tokens'>('text');
  const waits = running && !message.content && !message.calls;
  return (
    <article class="answered" aria-label={`Answer of ${message.model}`} aria-busy={running}>
      {waits && <p class="waits muted"><i /><i /><i /><span class="sr">Waiting for the first token</span></p>}
      {message.content && (view === 'tokens' && (message.tokens || message.runs?.length)
        ? <TokenView message={message} />
        : <Markdown text={message.content} />)}
      {message.calls?.map((call) => <Call key={call.id || call.name} call={call} />)}
      {message.error && <p class="notice bad" role="alert">{message.error}</p>}
      {!running && message.calls && props.last && !props.busy && <Results calls={message.calls} onSend={props.results} />}
      {message.stats && message.stats.outputTokens > 0 && <Speed stats={message.stats} runs={message.runs ?? []} running={running} />}
      {!running && (
        <div class="actions">
          <IconButton class="slim" icon="copy" label="Copy" onClick={() => void copyText(message.content)} />
          <IconButton class="slim" icon="again" label="Answer again" disabled={props.busy} onClick={() => props.again(message.id)} />
          {(message.tokens || (message.runs?.length ?? 0) > 0) && (
            <IconButton class="slim" icon="tokens" label={message.tokens ? 'Show tokens and their likelihood' : 'Show which text was computed at which precision'}
              aria-pressed={view === 'tokens'} onClick={() => setView(view === 'tokens' ? 'text' : 'tokens')} />
          )}
        </div>
      )}
    </article>
  );
}

const ends: Record<string, string> = {
  length: 'cut at the most tokens', stopped: 'stopped', content_filter: 'filtered',
};

/** The speed of an answer, and a bar of the precisions at which its tokens were computed. */
export function Speed({ stats, runs, running }: { stats: Stats; runs: Run[]; running: boolean }) {
  const rate = stats.decodeS > 0 ? (stats.outputTokens - 1) / stats.decodeS : 0;
  const all = runs.reduce((sum, run) => sum + run.tokens, 0);
  const totals = new Map<string, number>();
  for (const run of runs) totals.set(run.label, (totals.get(run.label) ?? 0) + run.tokens);
  const details = [...totals].map(([label, tokens]) => `${plural(tokens, 'token')} at ${labelText(label)}`).join(', ');
  return (
    <div class="speed">
      <div class="ribbon" role="img" aria-label={details}>
        {runs.map((run, i) => (
          <span key={i} style={{ flexGrow: run.tokens / Math.max(all, 1) }} title={`${run.tokens} tokens at ${labelText(run.label)}`}>
            {sharesOf(run.label).map((share) => <i key={share.precision} class={tintClass(share.precision)} style={{ flexGrow: share.share }} />)}
          </span>
        ))}
      </div>
      <p class="facts num">
        {precisionShares(runs).map(({ precision, share }) => (
          <span key={precision} class="precision" title={details}>
            <i class={`swatch ${tintClass(precision)}`} />
            {precision}{share < 0.9995 ? ` ${(share * 100).toFixed(share < 0.095 ? 1 : 0)} %` : ''}
          </span>
        ))}
        {rate > 0 && <span><b>{rate.toFixed(rate < 10 ? 1 : 0)}</b> tokens/s</span>}
        <span><b>{seconds(stats.ttftS)}</b> to the first</span>
        <span>{count(stats.outputTokens)} tokens{running ? ' so far' : ''}</span>
        {ends[stats.finish] && <span>{ends[stats.finish]}</span>}
      </p>
    </div>
  );
}

function pretty(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function Call({ call }: { call: ToolCall }) {
  return (
    <div class="call">
      <p><Icon name="play" />Calls <code>{call.name}</code></p>
      <pre tabIndex={0}>{pretty(call.arguments)}</pre>
    </div>
  );
}

function Results({ calls, onSend }: { calls: ToolCall[]; onSend: Actions['results'] }) {
  const [texts, setTexts] = useState(calls.map(() => ''));
  return (
    <form class="results" onSubmit={(event) => { event.preventDefault(); onSend(calls.map((call, i) => ({ callId: call.id, content: texts[i]! }))); }}>
      {calls.map((call, i) => (
        <label key={call.id} class="field">
          <span>What {call.name} returns</span>
          <textarea class="mono" rows={2} placeholder='{"ok": true}' value={texts[i]}
            onInput={(event) => setTexts(texts.map((text, at) => (at === i ? event.currentTarget.value : text)))} />
        </label>
      ))}
      <button type="submit" class="button slim primary">Send {calls.length === 1 ? 'the result' : 'the results'}</button>
    </form>
  );
}
