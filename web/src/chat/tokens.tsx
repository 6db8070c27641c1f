// An answer token by token: how likely each was, what else might have come, and at which precision
// the text was computed.

import { useState } from 'preact/hooks';
import { labelText, sharesOf, tintClass } from '../ui/precision';
import type { Message, Run, Token } from './model';

export function TokenView({ message }: { message: Message }) {
  return message.tokens ? <Likelihoods tokens={message.tokens} runs={message.runs ?? []} /> : <Runs message={message} />;
}

function neighbour(token: HTMLElement, step: number): HTMLElement | undefined {
  const all = [...token.parentElement!.querySelectorAll('button')];
  return all[all.indexOf(token as HTMLButtonElement) + step];
}

/** The precision that has the largest share of the layers. */
function main(label: string): string {
  return sharesOf(label).sort((a, b) => b.share - a.share)[0]?.precision ?? '';
}

function Runs({ message }: { message: Message }) {
  let at = 0;
  return (
    <p class="tokens">
      {message.runs!.map((run, i) => {
        const text = message.content.slice(at, i === message.runs!.length - 1 ? undefined : at + run.chars);
        at += run.chars;
        return <span key={i} class={`run ${tintClass(main(run.label))}`} title={labelText(run.label)}>{text}</span>;
      })}
    </p>
  );
}

function Likelihoods({ tokens, runs }: { tokens: Token[]; runs: Run[] }) {
  const [at, setAt] = useState(-1);
  const labels = runs.flatMap((run) => Array<string>(run.tokens).fill(run.label));
  const shown = tokens[at];
  return (
    <div class="likelihoods">
      <p class="tokens" onMouseLeave={() => setAt(-1)}>
        {tokens.map((token, i) => (
          <button key={i} type="button" tabIndex={i === Math.max(at, 0) ? 0 : -1}
            class={`token ${tintClass(main(labels[i] ?? ''))}`} data-unlikely={Math.min(4, Math.floor(-token.logprob))}
            aria-label={`${token.text}: ${percent(token.logprob)}`}
            onMouseEnter={() => setAt(i)} onFocus={() => setAt(i)}
            onKeyDown={(event) => {
              const next = event.key === 'ArrowRight' ? neighbour(event.currentTarget, 1) : event.key === 'ArrowLeft' ? neighbour(event.currentTarget, -1) : null;
              if (next) { event.preventDefault(); next.focus(); }
            }}>{token.text.replace(/\n/g, '↵')}</button>
        )).flatMap((button, i) => (tokens[i]!.text.includes('\n') ? [button, <br key={`b${i}`} />] : [button]))}
      </p>
      <div class="alternatives" aria-live="polite">
        {shown ? (
          <>
            <p class="small muted">{labels[at] ? `Computed at ${labelText(labels[at])}. ` : ''}Likelihood of this token and the alternatives:</p>
            <table class="num">
              <tbody>
                {[{ text: shown.text, logprob: shown.logprob }, ...shown.top.filter((other) => other.text !== shown.text)].map((other, i) => (
                  <tr key={i} class={i === 0 ? 'drawn' : ''}>
                    <th scope="row"><code>{JSON.stringify(other.text).slice(1, -1)}</code></th>
                    <td class="meter"><i style={{ width: `${Math.exp(other.logprob) * 100}%` }} /></td>
                    <td>{percent(other.logprob)}</td>
                    <td class="muted">{other.logprob.toFixed(2)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </>
        ) : (
          <p class="small muted">Point at a token, or go there with Tab and the arrow keys. Fainter tokens were likelier; strong ones surprised the model.</p>
        )}
      </div>
    </div>
  );
}

function percent(logprob: number): string {
  const value = Math.exp(logprob) * 100;
  return `${value.toFixed(value < 1 ? 2 : value < 99.95 ? 1 : 0)} %`;
}
