// Errors in a command line, a configuration file or the environment are one line with the offending
// word and the nearest command or flag.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { builtin, program } from './server.mjs';

// The environment of the tests has variables of its own.
const plain = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('PROTEAN_')));
const run = (args, env = {}) => spawnSync(program, args, { encoding: 'utf8', input: '', env: { ...plain, ...env } });

function refuses(args, words) {
  const { status, stdout, stderr } = run(args);
  const line = args.join(' ');
  assert.equal(status, 2, `${line}: ${stderr}`);
  assert.equal(stdout, '', line);
  assert.match(stderr, /^protean: [^\n]+\n$/, `${line}: one line`);
  assert.match(stderr, words, line);
}

let scratch;
before(() => { scratch = mkdtempSync(join(tmpdir(), 'protean-command-line-')); });
after(() => rmSync(scratch, { recursive: true, force: true }));

describe('command line errors', () => {
  it('name the word and the nearest command or flag', () => {
    for (const [args, words] of [
      [[], /protean needs a command: see protean --help/],
      [['srve', builtin], /no command 'srve': did you mean serve\?/],
      [['bench'], /protean bench needs a command/],
      [['bench', 'kernel'], /protean bench has no command 'kernel': did you mean kernels\?/],
      [['xyzzy'], /no command 'xyzzy': see protean --help/],
      [['--prot', '80'], /protean has no flag --prot/],
      [['--port', '80', 'serve', builtin], /protean has no flag --port: it is a flag of protean serve/],
      [['serve', '--model', builtin], /--model [^ ]*: write NAME=MODEL; a single model is served by protean serve MODEL/],
      [['generate', '-m', builtin], /generate has no flag -m: the model is an argument/],
      [['serve', builtin, '--prot', '80'], /protean serve has no flag --prot: did you mean --port\?/],
      [['serve', builtin, '--max-batched-tokens=5'], /did you mean --max-num-batched-tokens\?/],
      [['serve', builtin, '--xyzzy'], /no flag --xyzzy: see protean serve --help/],
      [['generate', builtin, '--port', '80'], /generate has no flag --port: it is a flag of protean serve/],
      [['generate', builtin, 'Once upon'], /does not know what to do with 'Once upon'/],
      [['serve', builtin, '-'], /protean serve does not know what to do with '-'/],
      [['serve', builtin, '---'], /protean serve does not know what to do with '---'/],
      [['serve', builtin, '--', 'x'], /protean serve does not know what to do with 'x'/],
      [['--', 'foo'], /protean has no command 'foo'/],
      [['serve'], /protean serve needs MODEL/],
      [['quantize', builtin], /protean quantize needs --output/],
      [['serve', builtin, '--port', '99999'], /--port: '99999' is not a whole number from 0 to 65535/],
      [['serve', builtin, '--port', '80.5'], /--port: '80\.5' is not a whole number/],
      [['serve', builtin, '--port'], /--port needs a value/],
      [['serve', builtin, '--port', '80', '--port', '81'], /--port is given twice but takes one value/],
      [['generate', builtin, '--temperature', 'nan'], /--temperature: 'nan' is not a number from 0 to 100/],
      [['serve', builtin, '--morph', 'fast'], /--morph: 'fast' is none of off, accuracy, balanced, performance/],
    ]) {
      refuses(args, words);
    }
  });

  it('say that a file does not exist, in every command', () => {
    for (const [command, ...flags] of [
      ['serve', '--config', '--chat-template', '--api-key-file', '--ssl-certfile', '--ssl-keyfile'],
      ['generate', '--config', '--chat-template'],
      ['chat', '--config'],
      ['inspect', '--config'],
      ['eval', '--config', '--text', '--generate'],
      ['quantize', '--config', '--calibrate'],
      ['profile', '--config', '--calibrate', '--text'],
      ['bench serve', '--config', '--trace', '--prompt-file', '--dataset-path', '--ca-file'],
      ['bench engine', '--config', '--gguf'],
    ]) {
      for (const flag of flags) {
        refuses([...command.split(' '), ...(command === 'bench serve' ? [] : [builtin]), flag, '/nope'],
          new RegExp(`${flag}[: ]+'?/nope'?:? (does not exist|there is no such file)`));
      }
      if (command !== 'bench serve') refuses([...command.split(' '), '/nope', ...(command === 'quantize' ?
        ['-o', join(scratch, 'new'), '--method', 'rtn'] : command === 'eval' ? ['--text', '/dev/null'] :
        command === 'profile' ? ['--steps'] : [])], /\/nope cannot be found/);
    }
    refuses(['bench', 'compare', '/nope', '/nope'], /RUN-A: '\/nope' does not exist/);
  });

  it('name unknown keys and tables of a configuration file', () => {
    const file = join(scratch, 'protean.toml');
    for (const [text, words] of [
      ['port = 0\nmax_sequences = 3\n', /line 2: 'max-sequences' is no flag of protean serve/],
      ['prot = 0\n', /line 1: 'prot' is no flag of protean serve: did you mean port\?/],
      ['[sreve]\nport = 0\n', /there is no command 'sreve': did you mean serve\?/],
      ['port = \n', /line 1/],
      ['port = 0\nmorph = true\n', /line 2: 'morph' takes a value/],
    ]) {
      writeFileSync(file, text);
      refuses(['serve', builtin, '--config', file], words);
    }
    refuses(['serve', builtin, '--config', file, '--config', file], /--config is given twice/);
  });

  it('check flags that have no effect without another', () => {
    for (const [args, words] of [
      [['serve', builtin, '--quality-floor', '3foo'], /--quality-floor: .*3foo/],
      [['serve', builtin, '--variant', 'w4=/nope'], /\/nope cannot be found/],
      [['serve', builtin, '--variant-cache-size', 'much'], /--variant-cache-size/],
      [['eval', builtin, '--text', '/dev/null', '--schedule', 'foo'], /foo/],
      [['profile', builtin, '--steps', '--variant', 'w4=/nope'], /\/nope cannot be found/],
      [['quantize', builtin, '--method', 'rtn', '--calibrate', '/nope', '-o', join(scratch, 'new')], /--calibrate/],
    ]) {
      refuses(args, words);
    }
  });
});

describe('the environment', () => {
  it('gets a warning for a PROTEAN_ variable that nothing reads', () => {
    const { status, stderr } = run(['inspect', builtin], { PROTEAN_PROT: '80', PROTEAN_THREADS: '1' });
    assert.equal(status, 0, stderr);
    assert.match(stderr, /PROTEAN_PROT in the environment has no effect: did you mean PROTEAN_PORT\?/);
    assert.doesNotMatch(stderr, /PROTEAN_THREADS/);
  });
});

describe('--help', () => {
  it('says what each flag does, in lines of at most 100 columns', () => {
    for (const command of ['serve', 'generate', 'chat', 'inspect', 'eval', 'quantize', 'profile', 'make-model',
      'bench serve', 'bench compare', 'bench kernels', 'bench engine']) {
      const { status, stdout } = run([...command.split(' '), '--help']);
      assert.equal(status, 0, command);
      assert.match(stdout, new RegExp(`^Usage: protean ${command}`));
      const lines = stdout.split('\n');
      for (const line of lines) assert.ok(line.length <= 100, `${command}: ${line}`);
      lines.forEach((line, i) => {
        if (!/^ {2}-/.test(line)) return;
        assert.ok(line.length > 34 || lines[i + 1].startsWith(' '.repeat(32)), `${command}: ${line} says nothing`);
      });
    }
  });
});
