import { Mark } from '../ui/parts';
import { count } from '../ui/format';

const openings = [
  'Tell me a story about a fox and an old clock.',
  'Write an opening of a novel that is set at sea.',
  'Continue: The old man looked out over the water and',
  'Who wrote Persuasion, and when?',
];

export function Welcome(props: { model: string; context?: number; onAsk: (text: string) => void }) {
  const origin = new URL('.', location.href).href;
  return (
    <section class="welcome" aria-label="New chat">
      <div class="hello">
        <Mark />
        <h2>{props.model ? <>Ask <em>{props.model}</em> something</> : 'Waiting for the model'}</h2>
        <p class="muted">
          {props.context ? <>It reads up to {count(props.context)} tokens. </> : null}
          Below each answer a bar shows its speed, and at which precision its tokens were computed.
        </p>
      </div>
      <ul class="openings">
        {openings.map((text) => (
          <li key={text}><button type="button" disabled={!props.model} onClick={() => props.onAsk(text)}>{text}</button></li>
        ))}
      </ul>
      <p class="muted small api">
        OpenAI's clients work here too: base URL <code>{origin}v1</code>
      </p>
    </section>
  );
}
