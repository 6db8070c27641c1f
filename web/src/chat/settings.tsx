import { useId } from 'preact/hooks';
import { IconButton } from '../ui/parts';
import type { Problem, Settings } from './model';

interface Props {
  settings: Settings;
  problem: Problem | null;
  onChange: (change: Partial<Settings>) => void;
  onClose: () => void;
}

const toolExample = JSON.stringify(
  [{ type: 'function', function: {
    name: 'get_weather', description: 'The weather of a city, now',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } } }], null, 2);
const schemaExample = JSON.stringify(
  { type: 'object', properties: { name: { type: 'string' }, age: { type: 'integer' } },
    required: ['name', 'age'], additionalProperties: false }, null, 2);

export function SettingsPanel({ settings, problem, onChange, onClose }: Props) {
  const number = (field: keyof Settings, label: string, hint: string, placeholder = 'default') => (
    <Field label={label} hint={hint} problem={problem?.field === field ? problem.message : ''}>
      {(id, described) => (
        <input id={id} {...described} inputMode="decimal" autocomplete="off" placeholder={placeholder} value={String(settings[field])}
          onInput={(event) => onChange({ [field]: event.currentTarget.value })} />
      )}
    </Field>
  );
  const area = (field: 'system' | 'stop' | 'schema' | 'tools', label: string, hint: string, rows: number, placeholder = '') => (
    <Field label={label} hint={hint} problem={problem?.field === field ? problem.message : ''}>
      {(id, described) => (
        <textarea id={id} {...described} rows={rows} spellcheck={field === 'system'} placeholder={placeholder} value={settings[field]}
          class={field === 'schema' || field === 'tools' ? 'mono' : ''} onInput={(event) => onChange({ [field]: event.currentTarget.value })} />
      )}
    </Field>
  );
  return (
    <aside class="settings" aria-label="Settings of this conversation">
      <div class="bar">
        <h2 class="grow">Settings</h2>
        <IconButton icon="close" label="Close the settings" onClick={onClose} />
      </div>
      <div class="fields">
        {area('system', 'System prompt', 'Sent before the conversation.', 4, 'You are a helpful assistant.')}
        <div class="pair">
          {number('temperature', 'Temperature', '0 takes the likeliest token')}
          {number('maxTokens', 'Most tokens', 'of an answer', 'as fit')}
          {number('topP', 'Top p', 'share of the likeliest')}
          {number('topK', 'Top k', '−1 takes all')}
          {number('minP', 'Min p', 'relative to the likeliest')}
          {number('seed', 'Seed', 'the same answer again', 'random')}
          {number('presence', 'Presence penalty', '−2 to 2', '0')}
          {number('frequency', 'Frequency penalty', '−2 to 2', '0')}
        </div>
        {area('stop', 'Stop at', 'One text a line.', 2)}
        <fieldset>
          <legend class="label">Answer</legend>
          <div class="segments">
            {([['text', 'Text'], ['json', 'JSON'], ['schema', 'JSON schema']] as const).map(([format, label]) => (
              <label key={format}>
                <input type="radio" name="format" checked={settings.format === format}
                  onChange={() => onChange({ format, ...(format === 'schema' && !settings.schema ? { schema: schemaExample } : {}) })} />
                {label}
              </label>
            ))}
          </div>
        </fieldset>
        {settings.format === 'schema' && area('schema', 'Schema', 'Enforced token by token.', 9)}
        <fieldset class="grid">
          <legend class="label">Look inside</legend>
          <label class="check">
            <input type="checkbox" checked={settings.logprobs} onChange={(event) => onChange({ logprobs: event.currentTarget.checked })} />
            <span>Logprobs: how likely each token was</span>
          </label>
          {settings.logprobs && number('alternatives', 'Alternatives', 'for each token, 0 to 20', '4')}
        </fieldset>
        <div>
          {area('tools', 'Tools', "A JSON list, as OpenAI's API takes it. You answer the calls.", settings.tools ? 9 : 2)}
          {!settings.tools && (
            <button type="button" class="button slim below" onClick={() => onChange({ tools: toolExample })}>Insert an example</button>
          )}
        </div>
      </div>
    </aside>
  );
}

function Field(props: {
  label: string;
  hint: string;
  problem: string;
  children: (id: string, described: Record<string, string | boolean>) => preact.ComponentChild;
}) {
  const id = useId();
  return (
    <div class="field">
      <label class="label" for={id}>{props.label}</label>
      {props.children(id, { 'aria-describedby': `${id}-hint`, ...(props.problem ? { 'aria-invalid': true } : {}) })}
      <span id={`${id}-hint`} class={props.problem ? 'hint wrong' : 'hint'} role={props.problem ? 'alert' : undefined}>
        {props.problem || props.hint}
      </span>
    </div>
  );
}
