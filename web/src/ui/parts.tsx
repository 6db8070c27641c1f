// Small parts that both pages use.

import type { ComponentChildren, JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { KeyRing } from './api';
import { nextTheme, theme, useTheme } from './theme';
import { byBits, tintClass } from './precision';

const paths: Record<string, string> = {
  plus: 'M12 5v14M5 12h14',
  send: 'M12 19V5M6 11l6-6 6 6',
  stop: 'M7 7h10v10H7z',
  copy: 'M9 9h10v10H9zM5 15V5h10',
  again: 'M19 12a7 7 0 1 1-2.1-5M19 4v4h-4',
  edit: 'M5 19h3L19 8l-3-3L5 16z',
  trash: 'M5 7h14M9 7V5h6v2M7 7l1 12h8l1-12',
  menu: 'M4 7h16M4 12h16M4 17h16',
  sliders: 'M4 8h9M17 8h3M15 6a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM4 16h3M11 16h9M9 14a2 2 0 1 0 0 4 2 2 0 0 0 0-4z',
  close: 'M6 6l12 12M18 6L6 18',
  download: 'M12 4v11M7 11l5 5 5-5M5 20h14',
  upload: 'M12 16V5M7 9l5-5 5 5M5 20h14',
  sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.5M17.5 17.5L19 19M5 19l1.5-1.5M17.5 6.5L19 5',
  moon: 'M19 14.5A8 8 0 0 1 9.5 5 7.5 7.5 0 1 0 19 14.5z',
  system: 'M4 5h16v11H4zM9 20h6M12 16v4',
  key: 'M14.5 9.5a4 4 0 1 0-3.8 4l1.3-1.3H14v-2h2l3-3v-2h-2z',
  play: 'M8 5l11 7-11 7z',
  pause: 'M8 5v14M16 5v14',
  dot: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8z',
  pin: 'M9 4h6l-1 7 3 3H7l3-3zM12 14v6',
  tokens: 'M4 7h5v10H4zM11 7h3v10h-3zM16 7h4v10h-4z',
};

export function Icon({ name }: { name: string }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={paths[name] ?? ''} />
    </svg>
  );
}

type ButtonProps = JSX.HTMLAttributes<HTMLButtonElement> & {
  icon: string;
  label: string;
  disabled?: boolean;
  type?: 'button' | 'submit';
};

/** A button that shows an icon and says its label to screen readers and on hover. */
export function IconButton({ icon, label, class: more, type = 'button', ...rest }: ButtonProps) {
  return (
    <button type={type} class={`icon-button ${more ?? ''}`} aria-label={label} title={label} {...rest}>
      <Icon name={icon} />
    </button>
  );
}

export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <rect class="tint-bf16" x="2" y="6" width="9" height="20" rx="2.5" />
      <rect class="tint-w8" x="12.5" y="6" width="5.5" height="20" rx="2" />
      <rect class="tint-w4" x="19.5" y="6" width="3" height="20" rx="1.5" />
      <rect class="tint-kv" x="24" y="6" width="6" height="20" rx="2" />
    </svg>
  );
}

export function ThemeButton() {
  const [now, set] = useState(theme());
  const next = nextTheme(now);
  return (
    <IconButton
      icon={now === 'system' ? 'system' : now === 'light' ? 'sun' : 'moon'}
      label={`Colours: ${now}. Change to ${next}`}
      onClick={() => {
        useTheme(next);
        set(next);
      }}
    />
  );
}

/** A coloured square with the name of each precision. */
export function Legend({ precisions, children }: { precisions: string[]; children?: ComponentChildren }) {
  return (
    <ul class="legend">
      {[...precisions].sort(byBits).map((precision) => (
        <li key={precision}>
          <i class={`swatch ${tintClass(precision)}`} />
          {precision}
        </li>
      ))}
      {children}
    </ul>
  );
}

/** A modal dialog. The browser keeps the focus in it; Escape calls onClose. */
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    ref.current!.showModal();
  }, []);
  return (
    <dialog ref={ref} aria-label={props.title} onCancel={props.onClose} onClose={props.onClose}>
      <h2>{props.title}</h2>
      {props.children}
    </dialog>
  );
}

/** Asks for the key of a port. `why` is what the server said to the last try. */
export function KeyDialog(props: { keys: KeyRing; flag: string; why: string; onDone: () => void; onClose: () => void }) {
  const [key, setKey] = useState('');
  const [keep, setKeep] = useState(false);
  return (
    <Dialog title="This server asks for a key" onClose={props.onClose}>
      <form
        method="dialog"
        onSubmit={(event) => {
          event.preventDefault();
          if (!key.trim()) return;
          props.keys.set(key.trim(), keep);
          props.onDone();
        }}
      >
        <p class="muted">
          It was started with <code>{props.flag}</code>. The key goes to this server only.
        </p>
        {props.why && (
          <p class="notice bad" role="alert">
            {props.why}
          </p>
        )}
        <label class="field">
          <span>Key</span>
          <input
            type="password"
            autocomplete="off"
            spellcheck={false}
            value={key}
            onInput={(event) => setKey(event.currentTarget.value)}
            autofocus
          />
        </label>
        <label class="check">
          <input type="checkbox" checked={keep} onChange={(event) => setKeep(event.currentTarget.checked)} />
          <span>Keep it in this browser; otherwise it is forgotten with this tab</span>
        </label>
        <div class="row end">
          <button type="button" class="button" onClick={props.onClose}>
            Not now
          </button>
          <button type="submit" class="button primary">
            Use this key
          </button>
        </div>
      </form>
    </Dialog>
  );
}

/** Offers `text` as a file. */
export function save(text: string, name: string, type = 'application/json'): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Copies text. Without a secure context there is no clipboard API, so the selection is copied. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement('textarea');
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
}
