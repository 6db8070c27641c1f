import { useRef, useState } from 'preact/hooks';
import { Icon, IconButton, Mark, save } from '../ui/parts';
import type { Conversation } from './model';
import { defaults } from './model';

interface Props {
  list: Conversation[];
  open: string;
  onOpen: (conversation: Conversation) => void;
  onNew: () => void;
  onRemove: (id: string) => void;
  onImport: (conversations: Conversation[]) => void;
  onClose: () => void;
}

function day(ms: number): string {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (ms >= midnight) return 'Today';
  if (ms >= midnight - 86_400_000) return 'Yesterday';
  return new Date(ms).toLocaleDateString([], { day: 'numeric', month: 'long' });
}

/** Reads an exported file. Throws if it is none. */
function parseExport(text: string): Conversation[] {
  const { conversations } = JSON.parse(text) as { conversations: Conversation[] };
  return conversations
    .filter((one) => typeof one.id === 'string' && Array.isArray(one.messages))
    .map((one) => ({ ...one, settings: { ...defaults, ...one.settings } }));
}

export function History(props: Props) {
  const file = useRef<HTMLInputElement>(null);
  const [failed, setFailed] = useState('');
  let former = '';
  return (
    <nav class="history" aria-label="Conversations">
      <div class="bar">
        <a class="brand" href="./"><Mark />Protean</a>
        <span class="grow" />
        <IconButton class="only-narrow" icon="close" label="Close" onClick={props.onClose} />
      </div>
      <button type="button" class="button new" onClick={props.onNew}><Icon name="plus" />New chat</button>
      <div class="past">
        {props.list.length === 0 && <p class="muted small empty">Conversations are kept in this browser and appear here.</p>}
        {props.list.map((one) => {
          const of = day(one.updated);
          const heading = of !== former ? <h2 class="label">{of}</h2> : null;
          former = of;
          return (
            <div key={one.id}>
              {heading}
              <div class="entry" aria-current={one.id === props.open ? 'true' : undefined}>
                <button type="button" class="name" onClick={() => props.onOpen(one)}>{one.title}</button>
                <IconButton class="slim" icon="trash" label={`Delete "${one.title}"`} onClick={() => props.onRemove(one.id)} />
              </div>
            </div>
          );
        })}
      </div>
      {failed && <p class="notice bad small" role="alert">{failed}</p>}
      <div class="row foot">
        <button type="button" class="button slim" disabled={props.list.length === 0}
          onClick={() => save(JSON.stringify({ protean_chats: 1, conversations: props.list }, null, 1), 'protean-chats.json')}>
          <Icon name="download" />Export
        </button>
        <button type="button" class="button slim" onClick={() => file.current!.click()}><Icon name="upload" />Import</button>
        <input ref={file} type="file" accept=".json,application/json" hidden aria-label="Conversations to import"
          onChange={(event) => {
            const input = event.currentTarget;
            void input.files?.[0]?.text().then((text) => {
              props.onImport(parseExport(text));
              setFailed('');
            }).catch(() => setFailed('That file holds no exported conversations. Choose one that Export wrote.'));
            input.value = '';
          }} />
      </div>
    </nav>
  );
}
