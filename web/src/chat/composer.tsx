import type { RefObject } from 'preact';
import { useLayoutEffect } from 'preact/hooks';
import { Icon } from '../ui/parts';

interface Props {
  field: RefObject<HTMLTextAreaElement>;
  text: string;
  ready: boolean;
  running: boolean;
  onText: (text: string) => void;
  onSend: () => void;
  onStop: () => void;
}

export function Composer(props: Props) {
  useLayoutEffect(() => {
    const area = props.field.current!;
    area.style.height = 'auto';
    area.style.height = `${Math.min(area.scrollHeight, 260)}px`;
  }, [props.text]);
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        props.onSend();
      }}
    >
      <label class="sr" for="composer">Message</label>
      <textarea
        id="composer"
        ref={props.field}
        rows={1}
        value={props.text}
        placeholder={props.ready ? 'Write a message' : 'Waiting for the model'}
        onInput={(event) => props.onText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            props.onSend();
          }
          if (event.key === 'Escape' && props.running) props.onStop();
        }}
      />
      {props.running ? (
        <button type="button" class="send" aria-label="Stop" title="Stop (Escape)" onClick={props.onStop}><Icon name="stop" /></button>
      ) : (
        <button type="submit" class="send" aria-label="Send" title="Send (Enter)" disabled={!props.ready || !props.text.trim()}><Icon name="send" /></button>
      )}
      <p class="hint">Enter sends, Shift+Enter begins a line. Answers can be wrong.</p>
    </form>
  );
}
