// SPDX-License-Identifier: MIT

// The examples of the README compile, and run as written, one after another. Only the port differs.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import ts from 'typescript';
import { Server, until } from './support.mjs';

const text = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
const blocks = [...text.matchAll(/```ts\n(.*?)```/gs)].map(([, code]) => code);
const compilerOptions = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.NodeNext };

test('the examples of the README run', async () => {
  const server = await Server.start();
  const printed = [];
  const log = console.log;
  try {
    assert.equal(blocks.length, 7);
    const end = '\nexport const end = () => clients.forEach((one) => one.disconnect());\n';
    const code = blocks.join('\n').replaceAll('new Redis()', `clients[clients.push(new Redis(${server.port})) - 1]`);
    const source = `const clients = [];\n${code}${end}`;
    const { outputText } = ts.transpileModule(source, { compilerOptions, fileName: 'readme.examples.mts' });
    const file = new URL('readme.examples.mjs', import.meta.url);
    writeFileSync(file, outputText);
    console.log = (...words) => printed.push(words.join(' '));
    (await import(file)).end();
    assert.equal(await server.admin.get('result'), '42');
    assert.ok(printed.some((line) => Number(line) > 0), 'a token');
    const expected = ['no other process is here', '1 0', 'jobs held released'];
    for (const line of expected) assert.ok(printed.includes(line), `${line} in ${printed.join('\n')}`);
  } finally {
    console.log = log;
    await server.stop();
  }
});

test('the examples of the README compile under strict', () => {
  const file = new URL('readme.examples.mts', import.meta.url).pathname;
  writeFileSync(file, blocks.join('\n'));
  const lib = ['lib.es2022.d.ts', 'lib.esnext.disposable.d.ts'];
  const strict = { ...compilerOptions, lib, strict: true, noEmit: true, skipLibCheck: true, types: ['node'] };
  const program = ts.createProgram([file], strict);
  const errors = ts.getPreEmitDiagnostics(program).map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, '\n'));
  assert.deepEqual(errors, []);
});

test('the first example runs in an empty project', async () => {
  const server = await Server.start();
  const project = mkdtempSync(join(tmpdir(), 'redis-lock-empty-'));
  try {
    const root = new URL('..', import.meta.url).pathname;
    const modules = join(project, 'node_modules');
    mkdirSync(join(modules, 'redis-lock-client'), { recursive: true });
    const packed = execFileSync('npm', ['pack', '--silent', '--pack-destination', project], { cwd: root });
    const archive = join(project, String(packed).trim());
    execFileSync('tar', ['-xzf', archive, '-C', join(modules, 'redis-lock-client'), '--strip-components', '1']);
    symlinkSync(join(root, 'node_modules', 'ioredis'), join(modules, 'ioredis'));
    writeFileSync(join(project, 'first.mjs'), blocks[0].replace('new Redis()', `new Redis(${server.port})`));
    const child = spawn('node', ['first.mjs'], { cwd: project, stdio: ['ignore', 'pipe', 'inherit'] });
    try {
      const [line] = await once(child.stdout, 'data');
      assert.equal(String(line), 'no other process is here\n');
      await until(() => server.isEmpty('order:42'), 'the release');
      assert.equal(child.exitCode, null);
    } finally {
      child.kill('SIGKILL');
    }
  } finally {
    rmSync(project, { recursive: true });
    await server.stop();
  }
});

test('each option has a line in the README', () => {
  const names = ['request', 'core'].flatMap((file) => {
    const source = readFileSync(new URL(`../src/${file}.ts`, import.meta.url), 'utf8');
    const [, options] = /export interface Locks?Options \{(.*?)\n\}/s.exec(source);
    return [...options.matchAll(/^ {2}(\w+)\?:/gm)].map(([, name]) => name);
  });
  assert.equal(names.length, 14);
  for (const name of names) assert.match(text, new RegExp(`^\\| \`${name}\` \\|`, 'm'), name);
});
