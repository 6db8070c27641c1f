import { render } from 'preact';
import '../ui/theme.css';
import './chat.css';
import { theme, useTheme } from '../ui/theme';
import { Chat } from './chat';
import { Store } from './store';

useTheme(theme());
void Store.open().then(async (store) => {
  const kept = await store.all();
  const page = document.getElementById('page')!;
  page.replaceChildren();
  render(<Chat store={store} kept={kept} />, page);
});
