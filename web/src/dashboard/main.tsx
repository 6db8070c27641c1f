import { render } from 'preact';
import '../ui/theme.css';
import './dashboard.css';
import { theme, useTheme } from '../ui/theme';
import { Dashboard } from './dashboard';

useTheme(theme());
const page = document.getElementById('page')!;
page.replaceChildren();
render(<Dashboard />, page);
