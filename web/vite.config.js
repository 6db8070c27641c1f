import { defineConfig } from 'vite';

// `npx vite` in web/ serves the sources to a browser and asks a running server for all else.
const running = { '/v1': process.env.PROTEAN ?? 'http://127.0.0.1:8000', '/admin': process.env.PROTEAN_ADMIN ?? 'http://127.0.0.1:8001' };

// Addresses are relative, so the pages work under any path prefix. Nothing is inlined: the content
// security policy allows no inline script or style.
export default defineConfig({
  base: './',
  server: { proxy: Object.fromEntries(Object.entries(running).map(([path, target]) => [path, { target, changeOrigin: false }])) },
  build: {
    target: 'es2022',
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    manifest: 'manifest.json',
    rollupOptions: {
      input: ['index.html', 'dashboard.html'],
      output: {
        entryFileNames: 'assets/[name]-[hash].js',
        chunkFileNames: 'assets/[name]-[hash].js',
        assetFileNames: 'assets/[name]-[hash][extname]',
      },
    },
  },
});
