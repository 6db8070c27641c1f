import { render } from 'preact';
import '../ui/theme.css';
import './dashboard.css';
import { theme, useTheme } from '../ui/theme';
import { Dashboard } from './dashboard';

useTheme(theme());
render(<Dashboard />, document.getElementById('page')!);
