// The chat: conversations on the left, the open one in the middle, its settings on the right.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { Api, CallError, KeyRing } from '../ui/api';
import { Icon, IconButton, KeyDialog, Mark, ThemeButton } from '../ui/parts';
import { forever } from '../ui/kept';
import { Composer } from './composer';
import { asMarkdown, defaults, newId, requestBody, titleOf, type Conversation, type Message, type Problem, type Settings } from './model';
import { History } from './history';
import { SettingsPanel } from './settings';
import type { Store } from './store';
import { streamAnswer } from './stream';
import { Welcome } from './welcome';
import { Thread } from './thread';
import { save } from '../ui/parts';

interface Model {
  id: string;
  max_model_len: number;
}

const settingsName = 'protean-settings';

function lastSettings(): Settings {
  try {
    return { ...defaults, ...(JSON.parse(forever.get(settingsName) ?? '{}') as Partial<Settings>) };
  } catch {
    return { ...defaults };
  }
}

function fresh(settings: Settings): Conversation {
  return { id: newId(), title: 'New chat', updated: Date.now(), settings: { ...settings }, messages: [] };
}

export function Chat({ store, kept }: { store: Store; kept: Conversation[] }) {
  const api = useMemo(() => new Api(new KeyRing('protean-key')), []);
  const [models, setModels] = useState<Model[]>([]);
  const [trouble, setTrouble] = useState('');
  const [keyWhy, setKeyWhy] = useState<string | null>(null);
  const [list, setList] = useState(kept);
  const [open, setOpen] = useState<Conversation>(() => fresh(lastSettings()));
  const [problem, setProblem] = useState<Problem | null>(null);
  const [panel, setPanel] = useState<'none' | 'history' | 'settings'>('none');
  const [draft, setDraft] = useState('');
  const [, redraw] = useState(0);
  const running = useRef<{ id: string; abort: AbortController } | null>(null);
  const composer = useRef<HTMLTextAreaElement>(null);

  const learnModels = async (): Promise<void> => {
    try {
      const { data } = await api.json<{ data: Model[] }>('v1/models');
      setModels(data);
      setTrouble('');
      setOpen((now) => (data.some((model) => model.id === now.settings.model) ? now : withSettings(now, { model: data[0]!.id })));
    } catch (error) {
      const failed = error as CallError;
      if (failed.status === 401) {
        setKeyWhy(api.keys.get() ? failed.message : '');
      } else {
        setTrouble(failed.message);
        setTimeout(() => void learnModels(), 2000); // it loads, or starts again
      }
    }
  };
  useEffect(() => {
    void learnModels();
    composer.current?.focus();
  }, []);

  const withSettings = (conversation: Conversation, change: Partial<Settings>): Conversation => ({
    ...conversation, settings: { ...conversation.settings, ...change },
  });
  const changeSettings = (change: Partial<Settings>): void => {
    const next = withSettings(open, change);
    setProblem(null);
    setOpen(next);
    const { system: _, ...rest } = next.settings;
    forever.set(settingsName, JSON.stringify(rest));
    if (next.messages.length > 0) keep(next);
  };
  const keep = (conversation: Conversation): void => {
    conversation.updated = Date.now();
    void store.put(conversation);
    setList((now) => [conversation, ...now.filter((other) => other.id !== conversation.id)]);
  };
  const show = (conversation: Conversation): void => {
    running.current?.abort.abort();
    setProblem(null);
    setPanel('none');
    setOpen(models.some((model) => model.id === conversation.settings.model) || models.length === 0
      ? conversation : withSettings(conversation, { model: models[0]!.id }));
    composer.current?.focus();
  };

  // Asks for the answer to `messages` and shows it as it comes.
  const answer = async (messages: Message[]): Promise<void> => {
    let body: Record<string, unknown>;
    try {
      body = requestBody(open.settings, messages);
    } catch (wrong) {
      setProblem(wrong as Problem);
      setPanel('settings');
      return;
    }
    setDraft('');
    const said: Message = { id: newId(), role: 'assistant', content: '', model: open.settings.model };
    const now: Conversation = { ...open, messages: [...messages, said] };
    if (now.title === 'New chat') now.title = titleOf(messages.find((message) => message.role === 'user')?.content ?? '');
    setOpen(now);
    keep(now);
    const abort = new AbortController();
    running.current = { id: said.id, abort };
    let drawn = 0;
    const changed = (): void => {
      drawn ||= requestAnimationFrame(() => { drawn = 0; redraw((n) => n + 1); });
    };
    try {
      await streamAnswer(api, body, said, changed, abort.signal);
    } catch (error) {
      const failed = error as CallError;
      said.error = failed.message;
      if (failed.status === 401) setKeyWhy(failed.message);
    }
    if (running.current?.id === said.id) running.current = null;
    keep(now);
    redraw((n) => n + 1);
    if (running.current === null) composer.current?.focus();
  };
  const send = (text: string): void => {
    if (running.current || !text.trim() || models.length === 0) return;
    void answer([...open.messages, { id: newId(), role: 'user', content: text }]);
  };
  const actions = {
    again: (id: string) => void answer(open.messages.slice(0, open.messages.findIndex((m) => m.id === id))),
    edit: (id: string, text: string) =>
      void answer([...open.messages.slice(0, open.messages.findIndex((m) => m.id === id)), { id: newId(), role: 'user', content: text }]),
    results: (results: { callId: string; content: string }[]) =>
      void answer([...open.messages, ...results.map((result) => ({ id: newId(), role: 'tool' as const, ...result }))]),
  };

  return (
    <div class="chat" data-panel={panel}>
      <a class="skip" href="#composer">Skip to the message field</a>
      <History
        list={list}
        open={open.id}
        onOpen={show}
        onNew={() => show(fresh(lastSettings()))}
        onRemove={(id) => {
          void store.remove(id);
          setList((now) => now.filter((other) => other.id !== id));
          if (id === open.id) show(fresh(lastSettings()));
        }}
        onImport={(imported) => {
          imported.forEach((conversation) => void store.put(conversation));
          setList((now) => [...imported, ...now.filter((other) => !imported.some((one) => one.id === other.id))]);
        }}
        onClose={() => setPanel('none')}
      />
      <main class="middle">
        <header class="bar">
          <IconButton class="only-narrow" icon="menu" label="Conversations" aria-expanded={panel === 'history'} onClick={() => setPanel(panel === 'history' ? 'none' : 'history')} />
          <a class="brand only-narrow" href="./" aria-label="Protean"><Mark /></a>
          <label class="pick">
            <span class="sr">Model</span>
            <select value={open.settings.model} disabled={models.length === 0} onChange={(event) => changeSettings({ model: event.currentTarget.value })}>
              {models.length === 0 && <option value="">No model yet</option>}
              {models.map((model) => <option key={model.id} value={model.id}>{model.id}</option>)}
            </select>
          </label>
          <h1 class="grow title" title={open.title}>{open.messages.length > 0 ? open.title : <span class="sr">New chat</span>}</h1>
          {open.messages.length > 0 && (
            <>
              <IconButton icon="download" label="Save this conversation as Markdown" onClick={() => save(asMarkdown(open), `${fileName(open.title)}.md`, 'text/markdown')} />
            </>
          )}
          <ThemeButton />
          <IconButton icon="sliders" label="Settings" aria-expanded={panel === 'settings'} onClick={() => setPanel(panel === 'settings' ? 'none' : 'settings')} />
        </header>
        {trouble && (
          <div class="notice warn banner" role="status">
            <Icon name="again" /> {trouble} This page tries again by itself.
          </div>
        )}
        {open.messages.length === 0 ? (
          <Welcome model={open.settings.model} context={models.find((model) => model.id === open.settings.model)?.max_model_len} onAsk={send} />
        ) : (
          <Thread conversation={open} running={running.current?.id ?? ''} {...actions} />
        )}
        <Composer
          field={composer}
          text={draft}
          onText={setDraft}
          ready={models.length > 0}
          running={running.current !== null}
          onSend={() => send(draft)}
          onStop={() => running.current?.abort.abort()}
        />
      </main>
      <SettingsPanel settings={open.settings} problem={problem} onChange={changeSettings} onClose={() => setPanel('none')} />
      {panel !== 'none' && <button type="button" class="scrim" aria-label="Close the panel" onClick={() => setPanel('none')} />}
      {keyWhy !== null && (
        <KeyDialog
          keys={api.keys}
          flag="--api-key"
          why={keyWhy}
          onDone={() => { setKeyWhy(null); void learnModels(); }}
          onClose={() => { setKeyWhy(null); setTrouble('A key is needed. Reload this page to give it.'); }}
        />
      )}
    </div>
  );
}

function fileName(title: string): string {
  return title.toLowerCase().replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, '').slice(0, 50) || 'chat';
}
